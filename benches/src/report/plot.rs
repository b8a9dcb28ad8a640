//! Plots, as SVG.

use std::path::Path;

use plotters::{
    chart::ChartBuilder,
    coord::combinators::IntoLogRange,
    drawing::IntoDrawingArea,
    element::{Circle, PathElement, Rectangle, Text},
    prelude::SVGBackend,
    series::LineSeries,
    style::{BLACK, Color, IntoFont, RGBColor, ShapeStyle, WHITE},
};

use crate::{
    error::{Result, failure},
    report::record::{Record, figure},
};

const WIDTH: u32 = 760;
const BAR_HEIGHT: u32 = 26;
const LABELS: i32 = 170;
const FIGURES: i32 = 110;
const MARGIN: i32 = 10;
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 11] = [
    RGBColor(0x0b, 0x6e, 0x4f),
    RGBColor(0x9a, 0x9a, 0x9a),
    RGBColor(0xc8, 0x55, 0x3d),
    RGBColor(0x2d, 0x5d, 0xa1),
    RGBColor(0x8e, 0x5a, 0xa8),
    RGBColor(0xc0, 0x8a, 0x1e),
    RGBColor(0x3a, 0x3a, 0x3a),
    RGBColor(0x3f, 0xa7, 0xb5),
    RGBColor(0x8a, 0xb5, 0x3f),
    RGBColor(0xd4, 0x7a, 0xa8),
    RGBColor(0x6b, 0x4a, 0x2f),
];

/// The name of a scenario's plot.
pub(crate) fn file(scenario: &str) -> String {
    format!("{scenario}.svg")
}

/// Returns `true` if there is something to draw: two subjects, or a subject at two sizes.
pub(crate) fn can_draw(records: &[&Record]) -> bool {
    !lines(records).is_empty() || bars(records).len() > 1
}

/// Draws the figures: their growth, or the first metric side by side.
pub(crate) fn draw(path: &Path, title: &str, records: &[&Record]) -> Result<()> {
    if !can_draw(records) {
        return Ok(());
    }
    let lines = lines(records);
    let drawn = if lines.is_empty() {
        draw_bars(path, title, &bars(records))
    } else {
        draw_lines(path, title, &lines)
    };
    drawn.map_err(|error| failure(format!("{}: {error}", path.display())))
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Subjects, with the figures of one metric after the other.
fn bars<'a>(records: &[&'a Record]) -> Vec<(String, f64, &'a str, usize)> {
    let mut bars: Vec<(String, f64, &str, usize)> = Vec::new();
    let mut subjects: Vec<&str> = Vec::new();
    let Some(unit) =
        records.iter().find(|record| record.against.is_none()).map(|record| record.unit)
    else {
        return bars;
    };
    let first = records.iter().find(|record| record.against.is_none()).map(|record| &record.metric);
    let of_first = |record: &&&Record| {
        let same = Some(&record.metric) == first || record.metric.starts_with("pairs of");
        record.against.is_none() && record.unit == unit && same
    };
    for record in records.iter().filter(of_first) {
        let place =
            subjects.iter().position(|subject| *subject == record.subject).unwrap_or_else(|| {
                subjects.push(&record.subject);
                subjects.len() - 1
            });
        let label = match record.metric.strip_prefix("pairs of ") {
            Some(tasks) => format!("{}, {tasks}", record.subject),
            None => record.subject.clone(),
        };
        bars.push((label, record.value, record.unit, place));
    }
    bars
}

/// Horizontal bars, each with its figure.
fn draw_bars(path: &Path, title: &str, bars: &[(String, f64, &str, usize)]) -> Drawn {
    let height = BAR_HEIGHT * u32::try_from(bars.len())? + 60;
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (MARGIN, MARGIN), (FONT, 15).into_font()))?;
    let greatest = bars.iter().map(|(_, value, ..)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let room = f64::from(i32::try_from(WIDTH)? - LABELS - FIGURES - 2 * MARGIN);
    for (place, (label, value, unit, subject)) in bars.iter().enumerate() {
        let top = 44 + i32::try_from(BAR_HEIGHT)? * i32::try_from(place)?;
        #[expect(clippy::cast_possible_truncation, reason = "pixels")]
        let length = (room * value / greatest).max(1.0) as i32;
        let (left, bottom) = (MARGIN + LABELS, top + i32::try_from(BAR_HEIGHT)? - 8);
        let colour = COLOURS[subject % COLOURS.len()];
        area.draw(&Text::new(label.clone(), (MARGIN, top + 3), (FONT, 13).into_font()))?;
        area.draw(&Rectangle::new([(left, top), (left + length, bottom)], colour.filled()))?;
        area.draw(&Text::new(
            figure(*value, unit),
            (left + length + 6, top + 3),
            (FONT, 13).into_font(),
        ))?;
    }
    area.present()?;
    Ok(())
}

/// For each subject the figures at each size, from metrics like `pairs of 64 tasks`, in a scenario
/// with several for one subject.
fn lines<'a>(records: &[&'a Record]) -> Vec<(&'a str, Vec<(f64, f64)>)> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    let grows = |record: &&&Record| {
        let is_pairs = record.against.is_none() && record.unit == "1/s";
        is_pairs && ["growth", "distinct"].contains(&record.scenario)
    };
    for record in records.iter().filter(grows) {
        let metric = record.metric.trim_start_matches("pairs of ");
        let size = metric.split_whitespace().next().and_then(|size| size.parse().ok());
        let Some(size) = size else { continue };
        match lines.iter_mut().find(|(subject, _)| *subject == record.subject) {
            Some((_, points)) => points.push((size, record.value)),
            None => lines.push((&record.subject, vec![(size, record.value)])),
        }
    }
    lines
}

fn draw_lines(path: &Path, title: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> Drawn {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let widest = points().map(|(size, _)| *size).fold(1.0, f64::max);
    let (least, greatest) = points()
        .fold((f64::MAX, 1.0), |(least, most): (f64, f64), (_, value)| {
            (least.min(*value), most.max(*value))
        });
    let area = SVGBackend::new(path, (WIDTH, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 15))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(
            (1.0..widest * 1.2).log_scale(),
            (least.max(1.0) / 2.0..greatest * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("tasks, or processes")
        .y_desc("pairs a second")
        .light_line_style(WHITE)
        .draw()?;
    for (place, (subject, points)) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let style = ShapeStyle { color: colour.to_rgba(), filled: true, stroke_width: 2 };
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(*subject)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, style)))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(scenario: &'static str, subject: &str, metric: &str, value: f64) -> Record {
        Record {
            scenario,
            subject: subject.into(),
            metric: metric.into(),
            value,
            unit: "1/s",
            against: None,
        }
    }

    #[test]
    fn bars_and_lines_are_drawn() {
        let directory =
            std::env::temp_dir().join(format!("lockcore-bench-plot-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let cluster = ["lockcore", "floor"]
            .map(|subject| record("cluster", subject, "pairs of 64 tasks", 5.0));
        let growth =
            [1, 64].map(|tasks| record("growth", "lockcore", &format!("{tasks} tasks"), 9.0));
        for (records, expected) in [(cluster, "floor, 64 tasks"), (growth, "lockcore")] {
            let path = directory.join("plot.svg");
            draw(&path, "Some title", &records.iter().collect::<Vec<_>>()).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            assert!(svg.contains(expected) && svg.contains("Some title"), "{svg}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
