//! Finds the limits of messages of the Redis protocol.

/// The length in bytes of the first message in `input`; `None` if it is not complete yet.
///
/// # Errors
/// If the bytes do not follow the protocol.
pub(super) fn message(input: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut end = 0;
    let mut left = 1_u64;
    while left > 0 {
        left -= 1;
        let Some(line) = line(&input[end..]) else { return Ok(None) };
        let kind = line.first().copied().ok_or(Malformed)?;
        end += line.len() + 2;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' => end += blob(number(line)?)?,
            b'*' | b'~' | b'>' => left += count(number(line)?)?,
            b'%' => left += 2 * count(number(line)?)?,
            // An attribute precedes the message itself.
            b'|' => left += 2 * count(number(line)?)? + 1,
            _ => return Err(Malformed),
        }
        if end > input.len() {
            return Ok(None);
        }
    }
    Ok(Some(end))
}

/// The input does not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

fn line(input: &[u8]) -> Option<&[u8]> {
    input.windows(2).position(|pair| pair == b"\r\n").map(|end| &input[..end])
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    std::str::from_utf8(&line[1..]).ok().and_then(|digits| digits.parse().ok()).ok_or(Malformed)
}

/// The length of a blob with its end of line; -1 stands for none.
fn blob(length: i64) -> Result<usize, Malformed> {
    if length < 0 {
        Ok(0)
    } else {
        usize::try_from(length).map(|length| length + 2).map_err(|_| Malformed)
    }
}

fn count(number: i64) -> Result<u64, Malformed> {
    match u64::try_from(number.max(0)) {
        Ok(count) if count <= 1 << 20 => Ok(count),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_of_every_kind_of_message() {
        let messages: [&[u8]; 9] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":5\r\n",
            b"$3\r\na\r\n\r\n",
            b"$-1\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b">3\r\n$7\r\nmessage\r\n+c\r\n$1\r\n0\r\n",
            b"%1\r\n+a\r\n*0\r\n",
            b"|1\r\n+a\r\n:1\r\n+OK\r\n",
        ];
        for whole in messages {
            assert_eq!(message(whole), Ok(Some(whole.len())), "{whole:?}");
            assert_eq!(message(&[whole, b"+next\r\n"].concat()), Ok(Some(whole.len())));
            for cut in 0..whole.len() {
                assert_eq!(message(&whole[..cut]), Ok(None), "{cut} of {whole:?}");
            }
        }
    }

    #[test]
    fn refuses_what_is_no_message() {
        for malformed in [&b"GET a\r\n"[..], b"$x\r\n", b"*99999999999\r\n", b"\r\n"] {
            assert_eq!(message(malformed), Err(Malformed));
        }
    }
}
