//! Tables, for a terminal and for a document.

use comfy_table::{CellAlignment, Table, presets};

use crate::report::{
    bars::Verdict,
    record::{Record, figure},
};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Terminal,
    Markdown,
}

impl Style {
    fn between_tables(self) -> &'static str {
        match self {
            Self::Terminal => "\n",
            Self::Markdown => "\n\n",
        }
    }
}

/// The maximum number of columns of a table. A scenario with more metrics has several tables.
const COLUMNS: usize = 6;

/// A figure of a table: its row, its column and its text.
type Cell<'a> = (&'a str, &'a str, String);

/// The figures of all subjects, then the ratios of lockcore's figures to those of the others.
pub(crate) fn scenario(records: &[&Record], style: Style) -> String {
    let cell = |record: &&Record| figure(record.value, record.unit);
    let values = records.iter().filter(|record| record.against.is_none());
    let values =
        values.map(|record| (record.subject.as_str(), record.metric.as_str(), cell(record)));
    let ratios = records.iter().filter_map(|record| {
        Some((record.against.as_deref()?, record.metric.as_str(), cell(record)))
    });
    let mut tables = grids("subject", &values.collect::<Vec<_>>(), style);
    tables.extend(grids("lockcore against", &ratios.collect::<Vec<_>>(), style));
    tables.join(style.between_tables())
}

/// Tables with a row for each name and a column for each metric.
fn grids(title: &str, cells: &[Cell<'_>], style: Style) -> Vec<String> {
    let metrics = distinct(cells.iter().map(|(_, metric, _)| *metric));
    metrics.chunks(COLUMNS).map(|metrics| grid(title, cells, metrics, style)).collect()
}

fn grid(title: &str, cells: &[Cell<'_>], metrics: &[&str], style: Style) -> String {
    let header = [&title].into_iter().chain(metrics).map(|word| (*word).to_owned()).collect();
    let names = cells.iter().filter(|(_, metric, _)| metrics.contains(metric));
    let lines = distinct(names.map(|(name, ..)| *name)).into_iter().map(|name| {
        let text = |metric: &&str| {
            let found = cells.iter().find(|cell| (cell.0, cell.1) == (name, *metric));
            found.map_or_else(|| "-".to_owned(), |(.., text)| text.clone())
        };
        [name.to_owned()].into_iter().chain(metrics.iter().map(text)).collect()
    });
    table(header, lines, style)
}

/// The distinct words, in the order of their first occurrence.
fn distinct<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for word in words {
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found
}

/// One row for each bar.
pub(crate) fn bars(verdicts: &[Verdict], style: Style) -> String {
    let header = ["scenario", "measure", "bar", "measured", ""].map(str::to_owned).to_vec();
    let lines = verdicts.iter().map(|verdict| {
        let met = if verdict.is_met { "met" } else { "MISSED" };
        let Verdict { scenario, measure, bar, measured, .. } = verdict;
        vec![(*scenario).to_owned(), measure.clone(), bar.clone(), measured.clone(), met.to_owned()]
    });
    table(header, lines, style)
}

fn table(
    header: Vec<String>,
    lines: impl IntoIterator<Item = Vec<String>>,
    style: Style,
) -> String {
    let mut table = Table::new();
    table.load_style(match style {
        Style::Terminal => presets::UTF8_FULL_CONDENSED,
        Style::Markdown => presets::ASCII_MARKDOWN,
    });
    table.set_header(header);
    table.add_rows(lines);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(match style {
            Style::Terminal => CellAlignment::Right,
            Style::Markdown => CellAlignment::Left,
        });
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(subject: &str, metric: &str, value: f64, against: Option<&str>) -> Record {
        let against = against.map(str::to_owned);
        Record {
            scenario: "s",
            subject: subject.into(),
            metric: metric.into(),
            value,
            unit: "1/s",
            against,
        }
    }

    #[test]
    fn a_document_gets_figures_with_gaps_where_nothing_was_measured_and_then_ratios() {
        let records = [
            record("lockcore", "pairs", 20_000.0, None),
            record("floor", "pairs", 21_000.0, None),
            record("lockcore", "pairs", 0.95, Some("floor")),
            record("lockcore", "wakes", 1.5, None),
        ];
        let tables = scenario(&records.iter().collect::<Vec<_>>(), Style::Markdown);
        let lines: Vec<Vec<&str>> =
            tables.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(lines[0], ["", "subject", "pairs", "wakes", ""]);
        assert_eq!(lines[2], ["", "lockcore", "20,000/s", "1.50/s", ""]);
        assert_eq!(lines[3], ["", "floor", "21,000/s", "-", ""]);
        assert_eq!(lines[5], ["", "lockcore against", "pairs", ""]);
        assert_eq!(lines[7], ["", "floor", "0.95/s", ""]);
        assert_eq!(lines.len(), 8);
    }

    #[test]
    fn many_metrics_are_several_tables_without_empty_lines() {
        let metrics: Vec<String> = (0..=COLUMNS).map(|number| format!("m{number}")).collect();
        let mut records: Vec<_> =
            metrics.iter().map(|metric| record("lockcore", metric, 1.0, None)).collect();
        records.push(record("floor", "m0", 1.0, None));
        let tables = scenario(&records.iter().collect::<Vec<_>>(), Style::Markdown);
        let tables: Vec<_> = tables.split("\n\n").collect();
        assert_eq!(tables.len(), 2, "{tables:?}");
        assert!(tables[0].contains("floor") && !tables[1].contains("floor"), "{tables:?}");
    }
}
