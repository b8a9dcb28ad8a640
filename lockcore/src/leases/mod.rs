//! The lease layer: how long a hold lasts, how it is renewed, how its loss is noticed and how it is given back.

pub(crate) mod background;
pub(crate) mod clock;
pub(crate) mod hold;
pub(crate) mod lease;
pub(crate) mod release;
pub(crate) mod renewal;
