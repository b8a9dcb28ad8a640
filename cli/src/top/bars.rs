//! Bars of block characters, and short times.

use std::time::Duration;

/// The eighths of a block, from one to seven.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// A bar of `width` characters, filled to `share`. A share above zero is always visible.
pub(crate) fn bar(share: f64, width: usize) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a small number"
    )]
    let eighths = (share * (width * 8) as f64).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1).min(width * 8) } else { 0 };
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    }
    let length = bar.chars().count();
    bar + &" ".repeat(width.saturating_sub(length))
}

/// A time in at most five characters: `9.4s`, `42s`, `17m`, `5h`, `12d`.
pub(crate) fn short_time(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_its_width_whatever_the_share() {
        for (share, shown) in [
            (0.0, "    "),
            (0.001, "▏   "),
            (0.5, "██  "),
            (0.53, "██▏ "),
            (1.0, "████"),
            (7.0, "████"),
            (-1.0, "    "),
            (f64::NAN, "    "),
        ] {
            assert_eq!(bar(share, 4), shown, "{share}");
        }
        assert_eq!(bar(0.5, 0), "");
    }

    #[test]
    fn times_are_short() {
        for (ms, shown) in [
            (0, "0.0s"),
            (9400, "9.4s"),
            (9990, "10.0s"),
            (42_900, "42s"),
            (119_000, "119s"),
            (7_199_000, "119m"),
            (7_200_000, "2h"),
            (400_000_000, "4d"),
        ] {
            assert_eq!(short_time(Duration::from_millis(ms)), shown);
        }
    }
}
