//! Everything that an error shows.

use lockcore::BackendError;

/// The error and its sources, as `Display` and as `Debug`.
pub(crate) fn shown(error: &BackendError) -> String {
    let mut shown = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        shown.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    shown
}
