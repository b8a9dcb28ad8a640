//! The overview: a comparison of lockcore with others, in one table and one picture.

use std::path::Path;

use plotters::{
    drawing::IntoDrawingArea,
    element::{PathElement, Rectangle, Text},
    prelude::SVGBackend,
    style::{Color, IntoFont, RGBColor, WHITE},
};

use super::bars::{BEST_PEER, BETTER_RSLOCK};
use crate::{
    error::{Result, failure},
    report::record::{RATIO, Record, figure},
};

/// The name of the picture.
pub(crate) const FILE: &str = "at-a-glance.svg";

/// The title of the picture.
pub(crate) const TITLE: &str = "lockcore as a multiple of the fastest other library";

/// A figure of the overview.
struct Headline {
    what: &'static str,
    scenario: &'static str,
    metric: &'static str,
    against: &'static str,
}

const fn headline(
    what: &'static str,
    scenario: &'static str,
    metric: &'static str,
    against: &'static str,
) -> Headline {
    Headline { what, scenario, metric, against }
}

const HEADLINES: [Headline; 14] = [
    headline("1 task, alone on the server", "uncontended", "pairs", BEST_PEER),
    headline("1 task, a name of its own", "distinct", "pairs of 1 task", BEST_PEER),
    headline("4 tasks, a name each", "distinct", "pairs of 4 tasks", BEST_PEER),
    headline("16 tasks, a name each", "distinct", "pairs of 16 tasks", BEST_PEER),
    headline("64 tasks, a name each", "distinct", "pairs of 64 tasks", BEST_PEER),
    headline("256 tasks, a name each", "distinct", "pairs of 256 tasks", BEST_PEER),
    headline("1,024 tasks, a name each", "distinct", "pairs of 1024 tasks", BEST_PEER),
    headline("16 tasks on a cluster", "cluster", "pairs of 16 tasks", "rslock"),
    headline("64 tasks on a cluster", "cluster", "pairs of 64 tasks", "rslock"),
    headline("1,024 tasks on a cluster", "cluster", "pairs of 1024 tasks", "rslock"),
    headline("64 tasks, one name", "contended", "pairs", BEST_PEER),
    headline("4 processes, one name", "fleet", "grants", BETTER_RSLOCK),
    headline("a hand-over to another process", "pingpong", "p50", "rueidislock"),
    headline("a task that comes back, `linger`", "linger", "pairs", "lockcore without linger"),
];

/// A line of the table and of the picture.
struct Line<'a> {
    headline: &'a Headline,
    figure: String,
    ratio: f64,
}

/// The headlines whose figures were measured.
fn lines(records: &[Record]) -> Vec<Line<'static>> {
    let of = |headline: &'static Headline| {
        let Headline { scenario, metric, against, .. } = headline;
        let own = |record: &&Record| record.scenario == *scenario && record.subject == "lockcore";
        let value = records
            .iter()
            .filter(own)
            .find(|record| record.against.is_none() && record.metric == *metric)?;
        let ratio = records.iter().filter(own).find(|record| {
            let of_metric = record.metric.strip_suffix(", less is more").unwrap_or(&record.metric);
            record.against.as_deref() == Some(*against) && of_metric == *metric
        })?;
        Some(Line { headline, figure: figure(value.value, value.unit), ratio: ratio.value })
    };
    HEADLINES.iter().filter_map(of).collect()
}

/// The table, or `None` if none of its figures was measured.
pub(crate) fn table(records: &[Record]) -> Option<String> {
    let lines = lines(records);
    let mut text = "| | lockcore | as a multiple of | |\n|---|---|---|---|\n".to_owned();
    for Line { headline: Headline { what, against, .. }, figure: own, ratio } in &lines {
        let (ratio, behind) = (figure(*ratio, RATIO), if *ratio < 1.0 { "**behind**" } else { "" });
        text += &format!("| {what} | {own} | {against}: {ratio} | {behind} |\n");
    }
    (!lines.is_empty()).then_some(text)
}

const AHEAD: RGBColor = RGBColor(0x0b, 0x6e, 0x4f);
const BEHIND: RGBColor = RGBColor(0xc8, 0x55, 0x3d);
const GREY: RGBColor = RGBColor(0x9a, 0x9a, 0x9a);
const WIDTH: i32 = 760;
const ROW: i32 = 26;
const TOP: i32 = 44;
/// The position of a bar for the ratio 1, which has no length.
const EQUAL: i32 = 330;
/// The pixels for a factor of two.
const DOUBLE: f64 = 42.0;

/// Draws a bar for each line: to the right if lockcore is ahead, to the left if it is behind, and
/// as long as the logarithm of the ratio.
pub(crate) fn draw(path: &Path, records: &[Record]) -> Result<()> {
    let lines = lines(records);
    if lines.is_empty() {
        return Ok(());
    }
    draw_lines(path, &lines).map_err(|error| failure(format!("{}: {error}", path.display())))
}

fn draw_lines(
    path: &Path,
    lines: &[Line<'_>],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let bottom = TOP + ROW * i32::try_from(lines.len())?;
    let size = (u32::try_from(WIDTH)?, u32::try_from(bottom + 16)?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    let font = |size| ("sans-serif", size).into_font();
    area.fill(&WHITE)?;
    area.draw(&Text::new(TITLE, (10, 10), font(15)))?;
    for (line, top) in lines.iter().zip((TOP..).step_by(usize::try_from(ROW)?)) {
        #[expect(clippy::cast_possible_truncation, reason = "pixels")]
        let length = (line.ratio.max(0.1).log2() * DOUBLE) as i32;
        let colour = if line.ratio < 1.0 { BEHIND } else { AHEAD };
        let ends = (EQUAL + length.min(0), EQUAL + length.max(0));
        area.draw(&Text::new(line.headline.what.replace('`', ""), (10, top + 3), font(13)))?;
        area.draw(&Rectangle::new([(ends.0, top), (ends.1, top + ROW - 8)], colour.filled()))?;
        let text = figure(line.ratio, RATIO);
        area.draw(&Text::new(text, (EQUAL.max(ends.1) + 6, top + 3), font(13)))?;
    }
    area.draw(&PathElement::new([(EQUAL, TOP - 6), (EQUAL, bottom)], GREY))?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(metric: &str, value: f64, against: Option<&str>) -> Record {
        let unit = if against.is_some() { RATIO } else { "us" };
        let (subject, metric) = ("lockcore".into(), metric.into());
        let against = against.map(Into::into);
        Record { scenario: "pingpong", subject, metric, value, unit, against }
    }

    #[test]
    fn what_was_measured_is_told_and_nothing_else() {
        assert!(table(&[]).is_none());
        let records = [
            record("p50", 80.5, None),
            record("p50", 2.3, Some("PING")),
            record("p50, less is more", 0.82, Some("rueidislock")),
        ];
        let table = table(&records).unwrap();
        assert_eq!(table.lines().count(), 3, "{table}");
        assert!(table.contains("| 80.5 us | rueidislock: 0.82 | **behind** |"), "{table}");
    }

    #[test]
    fn the_picture_has_a_bar_for_each_line() {
        let file = std::env::temp_dir().join(format!("lockcore-glance-{}.svg", std::process::id()));
        let records =
            [record("p50", 80.5, None), record("p50, less is more", 1.5, Some("rueidislock"))];
        draw(&file, &records).unwrap();
        let drawn = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(drawn.contains("1.50") && drawn.contains("#0B6E4F"), "{drawn}");
    }
}
