//! The losses of holds, and what clients have to say about them.

use std::time::Duration;

use lockcore_testkit::{Operations, checks::Operation};

use super::Scene;
use crate::protocol::Result;

/// The loss of a hold.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) name: String,
    /// When its holder was told.
    pub(crate) told: u64,
    client: String,
    /// From the grant until then.
    held: Duration,
    /// The deadline that it knew last.
    deadline: Option<u64>,
}

impl Loss {
    fn of(operation: &Operation) -> Option<Self> {
        let (told, (granted, _)) = (operation.lost?, operation.granted?);
        let mut looked = operation.looked.iter().rev();
        Some(Self {
            name: operation.name.clone(),
            told,
            client: operation.client.clone(),
            held: Duration::from_nanos(told.saturating_sub(granted)),
            deadline: looked.find(|(t, _)| *t <= told).map(|(_, until)| *until),
        })
    }
}

/// All losses in a log.
pub(super) fn losses(operations: &Operations) -> Vec<Loss> {
    operations.granted().filter_map(Loss::of).collect()
}

impl Scene {
    /// Notes how some losses came about, for whoever looks for the cause without the logs.
    pub(super) fn explain(&mut self, losses: &[Loss]) -> Result<()> {
        for Loss { name, client, held, deadline, told } in losses.iter().take(3) {
            let left = deadline.map(|deadline| deadline.saturating_sub(*told));
            let left = Duration::from_nanos(left.unwrap_or_default());
            self.note(format!(
                "{client} lost `{name}` after {held:?}, {left:?} before its deadline"
            ));
            let said = self.clients.iter().find(|it| it.name() == client).map(|it| &it.said);
            let said = said.map(std::fs::read_to_string).transpose()?.unwrap_or_default();
            let about = |line: &&str| {
                line.contains(name.as_str()) && (line.contains("renewal") || line.contains("lost"))
            };
            let lines: Vec<_> = said.lines().filter(about).collect();
            for line in &lines[lines.len().saturating_sub(6)..] {
                self.note(*line);
            }
        }
        Ok(())
    }
}
