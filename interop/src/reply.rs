//! [`JavaError`], and the lines of the program.

/// The reason why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JavaError {
    /// Java threw an exception.
    #[error("{exception}: {message}")]
    #[non_exhaustive]
    Thrown {
        /// The class, without its package: `IllegalMonitorStateException`.
        exception: String,
        /// Its message, in one line.
        message: String,
    },
    /// The process has ended, by itself or on request.
    #[error("the Java process has ended; what it wrote to stderr says why")]
    Ended,
    /// The process could not be started.
    #[error("{0}; ./scripts/interop builds the program and says what to install")]
    NotStarted(String),
    /// The reply does not fit the request, or the request cannot be written as a line.
    #[error("not understood: {0}")]
    Protocol(String),
}

impl JavaError {
    /// Returns `true` if Java threw an exception of this class.
    #[must_use]
    pub fn is(&self, class: &str) -> bool {
        matches!(self, Self::Thrown { exception, .. } if exception == class)
    }
}

/// A line of the program: the id of the request, and its result.
pub(crate) fn parse(line: &str) -> Result<(u64, Result<String, JavaError>), JavaError> {
    let unknown = || JavaError::Protocol(line.to_owned());
    let fields: Vec<&str> = line.split('\t').collect();
    let id = fields.first().and_then(|id| id.parse().ok()).ok_or_else(unknown)?;
    match fields[1..] {
        ["ok", value] => Ok((id, Ok(value.to_owned()))),
        ["error", exception, message] => Ok((
            id,
            Err(JavaError::Thrown { exception: exception.to_owned(), message: message.to_owned() }),
        )),
        _ => Err(unknown()),
    }
}

/// The line of a request.
pub(crate) fn line(
    id: u64,
    thread: &str,
    verb: &str,
    arguments: &[&str],
) -> Result<String, JavaError> {
    let mut line = format!("{id}\t{thread}\t{verb}");
    for argument in arguments {
        if argument.contains(['\t', '\n', '\r']) {
            return Err(JavaError::Protocol(format!(
                "an argument with a tab or a line end: {argument:?}"
            )));
        }
        line.push('\t');
        line.push_str(argument);
    }
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_value_or_an_exception() {
        assert_eq!(parse("7\tok\ttrue"), Ok((7, Ok("true".to_owned()))));
        assert_eq!(parse("7\tok\t"), Ok((7, Ok(String::new()))));
        let (_, thrown) = parse("8\terror\tIllegalMonitorStateException\tnot locked").unwrap();
        assert!(thrown.unwrap_err().is("IllegalMonitorStateException"));
        for line in ["", "x\tok\t1", "1", "1\tok", "1\tok\ta\tb", "1\tfine\ta"] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_request_is_one_line() {
        assert_eq!(line(3, "t", "lock", &["a", "b c"]).unwrap(), "3\tt\tlock\ta\tb c\n");
        assert!(line(3, "t", "lock", &["a\nb"]).is_err());
    }
}
