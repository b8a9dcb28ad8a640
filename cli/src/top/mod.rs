//! The parts of `lockctl top`: what is known, how it is drawn, where it comes from, and the
//! terminal.

pub(crate) mod bars;
pub(crate) mod entry;
pub(crate) mod keys;
pub(crate) mod model;
pub(crate) mod source;
pub(crate) mod terminal;
pub(crate) mod view;
