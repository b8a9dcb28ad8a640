//! The output: records as JSON, tables, plots, and whether the bars are reached.

mod bars;
mod glance;
mod markdown;
mod plot;
mod record;
mod table;

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

pub(crate) use self::{
    bars::{BEST_PEER, BETTER_RSLOCK},
    record::{RATIO, Record},
};
use crate::{error::Result, run::Plan};

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    records: Vec<Record>,
    /// The scenarios in the order in which they ran, with their descriptions.
    scenarios: Vec<(&'static str, &'static str)>,
    /// Remarks on the figures of a scenario.
    notes: Vec<(&'static str, String)>,
    /// For each scenario, the subjects that do not take part, by reason.
    left_out: Vec<(&'static str, String, Vec<&'static str>)>,
    json: Option<BufWriter<File>>,
}

impl Report {
    /// A report that writes every record to the file at once.
    pub(crate) fn new(json: Option<&Path>) -> Result<Self> {
        let json = json.map(File::create).transpose()?.map(BufWriter::new);
        Ok(Self { json, ..Self::default() })
    }

    pub(crate) fn begin(&mut self, scenario: &'static str, about: &'static str) {
        self.scenarios.push((scenario, about));
    }

    pub(crate) fn add(&mut self, record: Record) -> Result<()> {
        if let Some(json) = &mut self.json {
            serde_json::to_writer(&mut *json, &record)?;
            json.write_all(b"\n")?;
            json.flush()?;
        }
        self.records.push(record);
        Ok(())
    }

    pub(crate) fn note(&mut self, scenario: &'static str, note: String) {
        if !self.notes.contains(&(scenario, note.clone())) {
            self.notes.push((scenario, note));
        }
    }

    pub(crate) fn leave_out(
        &mut self,
        scenario: &'static str,
        subject: &'static str,
        reason: &str,
    ) {
        match self.left_out.iter_mut().find(|(of, known, _)| *of == scenario && known == reason) {
            Some((_, _, subjects)) => subjects.push(subject),
            None => self.left_out.push((scenario, reason.to_owned(), vec![subject])),
        }
    }

    /// The table of one scenario, for a terminal.
    pub(crate) fn scenario(&self, scenario: &str) -> String {
        let mut text = table::scenario(&self.of(scenario), table::Style::Terminal);
        for line in self.lines_of(scenario) {
            text += &format!("\n  {line}");
        }
        text
    }

    /// The bars, for a terminal; `None` if the scenarios of the run have none.
    pub(crate) fn bars(&self) -> Option<String> {
        let verdicts = bars::judge(&self.records);
        (!verdicts.is_empty()).then(|| table::bars(&verdicts, table::Style::Terminal))
    }

    /// Writes a plot of each scenario into the directory.
    pub(crate) fn write_plots(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        for (scenario, about) in &self.scenarios {
            plot::draw(&directory.join(plot::file(scenario)), about, &self.of(scenario))?;
        }
        glance::draw(&directory.join(glance::FILE), &self.records)
    }

    /// Writes the tables, and links to the plots, into a document that has a place for them.
    pub(crate) fn write_tables(
        &self,
        document: &Path,
        plots: Option<&Path>,
        plan: &Plan,
    ) -> Result<()> {
        let mut text = format!("{}\n\n", plan.describe());
        text += &table::bars(&bars::judge(&self.records), table::Style::Markdown);
        for (scenario, about) in &self.scenarios {
            text += &format!("\n\n### `{scenario}`\n\n{about}\n\n");
            text += &table::scenario(&self.of(scenario), table::Style::Markdown);
            text += "\n";
            for line in self.lines_of(scenario) {
                text += &format!("\n- {line}");
            }
            if let Some(plots) = plots.filter(|_| plot::can_draw(&self.of(scenario))) {
                let link = markdown::relative(document, &plots.join(plot::file(scenario)));
                text += &format!("\n\n![{about}]({link})");
            }
        }
        markdown::replace(document, "tables", &text)?;
        let Some(mut text) = glance::table(&self.records) else { return Ok(()) };
        if let Some(plots) = plots {
            let link = markdown::relative(document, &plots.join(glance::FILE));
            text += &format!("\n![{}]({link})", glance::TITLE);
        }
        markdown::replace(document, "what comes first", &text)
    }

    fn of(&self, scenario: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.scenario == scenario).collect()
    }

    /// The remarks below the tables of a scenario.
    fn lines_of(&self, scenario: &str) -> Vec<String> {
        let notes =
            self.notes.iter().filter(|(of, _)| *of == scenario).map(|(_, note)| note.clone());
        let left_out = self.left_out.iter().filter(|(of, ..)| *of == scenario);
        let left_out = left_out
            .map(|(_, reason, subjects)| format!("without {}: {reason}", subjects.join(", ")));
        left_out.chain(notes).collect()
    }
}
