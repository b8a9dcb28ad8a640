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

/// A line for each subject, a column for each metric. What is compared with something else stands elsewhere.
pub(crate) fn values(records: &[&Record], style: Style) -> String {
    let values: Vec<_> = records.iter().filter(|record| record.against.is_none()).collect();
    let (mut subjects, mut metrics): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for record in &values {
        if !subjects.contains(&record.subject.as_str()) {
            subjects.push(&record.subject);
        }
        if !metrics.contains(&record.metric.as_str()) {
            metrics.push(&record.metric);
        }
    }
    let header =
        ["subject"].into_iter().chain(metrics.iter().copied()).map(str::to_owned).collect();
    let lines = subjects.iter().map(|subject| {
        let cell = |metric: &&str| {
            let found =
                values.iter().find(|record| record.subject == *subject && record.metric == *metric);
            found.map_or_else(|| "-".to_owned(), |record| figure(record.value, record.unit))
        };
        [(*subject).to_owned()].into_iter().chain(metrics.iter().map(cell)).collect()
    });
    table(header, lines, style)
}

/// A line for each bar.
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
    fn a_document_gets_a_line_for_each_subject_and_gaps_where_nothing_was_measured() {
        let records = [
            record("lockcore", "pairs", 20_000.0, None),
            record("floor", "pairs", 21_000.0, None),
            record("lockcore", "pairs", 0.95, Some("floor")),
            record("lockcore", "wakes", 1.5, None),
        ];
        let table = values(&records.iter().collect::<Vec<_>>(), Style::Markdown);
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(lines[0], ["", "subject", "pairs", "wakes", ""]);
        assert_eq!(lines[2], ["", "lockcore", "20,000/s", "1.50/s", ""]);
        assert_eq!(lines[3], ["", "floor", "21,000/s", "-", ""]);
        assert_eq!(lines.len(), 4);
    }
}
