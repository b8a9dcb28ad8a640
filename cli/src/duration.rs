//! Durations on the command line.

use std::time::Duration;

/// Ten years. The clocks cannot represent moments that are much farther away.
const LONGEST: Duration = Duration::from_secs(3650 * 86400);

/// Parses `2`, `0.5`, `2s`, `500ms`, `10m`, `1h` or `1d`. A number without a unit means seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let no_number = "give a number with a unit, such as 2s, 0.5s or 500ms";
    let unit_at = text.find(|character: char| character.is_ascii_alphabetic());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    if number.is_empty() {
        return Err(no_number.into());
    }
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err("the units are ms, s, m, h and d".into()),
    };
    let number: f64 = number.parse().map_err(|_| no_number)?;
    let duration = Duration::try_from_secs_f64(number * seconds)
        .map_err(|_| "give a number that is not negative and not too great")?;
    if duration > LONGEST {
        return Err("give at most 3650d".into());
    }
    Ok(duration)
}

/// Like [`parse`], but refuses zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("give more than zero".into()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_seconds_and_units_are_known() {
        for (text, ms) in
            [("2", 2000), ("0.25", 250), ("1.5s", 1500), ("500ms", 500), ("2m", 120_000), ("0", 0)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse("1d"), Ok(Duration::from_secs(86400)));
        assert_eq!(parse("3650d"), Ok(LONGEST));
        for text in ["", "s", "-1", "1x", "1 s", "NaN", "inf", "1e400", "1m30s", "3651d", "9e18"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["", "s", "abc", "-", "1 s"] {
            assert!(parse(text).is_err_and(|error| error.contains("number")), "{text}");
        }
        assert!(parse("1x").is_err_and(|error| error.contains("units")));
        assert!(parse_positive("0").is_err());
    }
}
