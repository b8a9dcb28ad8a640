//! The parts of `lockctl top`: the model, its view, the source of its data, and the terminal.

pub(crate) mod bars;
pub(crate) mod entry;
pub(crate) mod input;
pub(crate) mod keys;
pub(crate) mod model;
pub(crate) mod source;
pub(crate) mod terminal;
pub(crate) mod view;
