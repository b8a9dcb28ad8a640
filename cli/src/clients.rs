//! [`Clients`]: who the owners on the wire are, by the records that clients leave at the store.

use std::{collections::HashMap, fmt};

use lockcore::{
    BackendError,
    backend::{Directory, Start},
};
use serde::{Deserialize, Serialize};

use crate::pace::Pace;

/// The clients that have told who they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    by_id: HashMap<String, Who>,
}

/// A process, as far as it has told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Who {
    pub(crate) host: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) pid: Option<u32>,
}

impl Clients {
    /// Walks over the records. A store without a directory has none.
    pub(crate) async fn read(
        directory: Option<&dyn Directory>,
        pace: &mut Pace,
    ) -> Result<Self, BackendError> {
        let mut clients = Self::default();
        let Some(directory) = directory else { return Ok(clients) };
        let mut start = Start::Beginning;
        loop {
            pace.take(1).await;
            let page = pace.in_time(directory.clients(&start)).await?;
            for (id, record) in page.entries {
                clients.add(id, &record);
            }
            match page.next {
                Some(next) => start = Start::At(next),
                None => return Ok(clients),
            }
        }
    }

    /// A record that is not understood says nothing. It may be of a later version.
    fn add(&mut self, id: String, record: &str) {
        if let Ok(who) = serde_json::from_str(record) {
            self.by_id.insert(id, who);
        }
    }

    /// The process of an owner on the wire, which is called `<client id>:<number>`.
    pub(crate) fn who(&self, owner: &str) -> Option<&Who> {
        let (id, _) = owner.rsplit_once(':')?;
        self.by_id.get(id)
    }
}

impl fmt::Display for Who {
    /// Host, program and process id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map(|pid| pid.to_string());
        let words = [self.host.as_deref(), self.program.as_deref(), pid.as_deref()];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use lockcore_memory::MemoryBackend;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_owner_is_found_by_the_id_of_its_client() {
        let store = MemoryBackend::new();
        let record = r#"{"host": "web-3", "program": "shop", "pid": 7, "later": [1]}"#;
        for (id, record) in [("1-2", record), ("3", r#"{"pid": 8}"#), ("4", "no JSON")] {
            store.put_client(id, record, Duration::from_secs(60)).await.unwrap();
        }
        let clients = Clients::read(Some(&store), &mut Pace::new(0)).await.unwrap();
        let said = |owner| clients.who(owner).map(ToString::to_string);
        assert_eq!(said("1-2:17").as_deref(), Some("web-3 shop 7"));
        assert_eq!(said("3:1").as_deref(), Some("8"));
        for unknown in ["4:1", "5:1", "1-2", "", "named"] {
            assert_eq!(said(unknown), None, "{unknown}");
        }
        assert!(Clients::read(None, &mut Pace::new(0)).await.unwrap().by_id.is_empty());
    }
}
