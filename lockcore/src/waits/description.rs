//! [`ClientDescription`]: a client's description of itself.

/// A client's description of itself in its [record](crate::LocksBuilder::description), for people
/// who inspect the store: the host and the program.
///
/// A part that is not set is determined when the record is first written: the name of the host as
/// the system knows it, and the file name of the executable. The command line is never written,
/// because it may carry secrets; neither are environment variables.
///
/// # Examples
/// ```
/// use lockcore::{ClientDescription, Locks};
/// use lockcore_memory::MemoryBackend;
///
/// # fn main() -> Result<(), lockcore::LockError> {
/// let described = ClientDescription::new().program("orders worker 3");
/// let locks = Locks::builder(MemoryBackend::new()).description(described).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientDescription {
    host: Option<String>,
    program: Option<String>,
}

impl ClientDescription {
    /// The default description of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the host. A name longer than 256 bytes is cut off, and control characters
    /// are replaced.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the name of the program, under the same rules.
    #[must_use]
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// The host and the program, as they are written.
    pub(crate) fn resolve(&self) -> (String, String) {
        (self.host.clone().unwrap_or_else(host), self.program.clone().unwrap_or_else(program))
    }
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_host_and_its_program_and_what_is_set_replaces_them() {
        let (host, program) = ClientDescription::new().resolve();
        assert!(!host.is_empty() && program.starts_with("lockcore"), "{host:?} {program:?}");
        let set = ClientDescription::new().host("h").program("p");
        assert_eq!(set.resolve(), ("h".into(), "p".into()));
    }
}
