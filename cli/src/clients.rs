//! [`Clients`]: who the owners on the wire are, by the records that clients leave at the store.

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, UNIX_EPOCH},
};

use lockcore::{
    BackendError,
    backend::{Directory, Start},
};
use serde::{Deserialize, Serialize};

use crate::pace::Pace;

/// The version of the records that is understood here.
const VERSION: u32 = 1;

/// The clients that have told who they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    by_id: HashMap<String, Who>,
    waits: HashMap<String, Vec<Wait>>,
}

/// A process, as far as it has told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Who {
    pub(crate) host: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) pid: Option<u32>,
}

/// Somebody who has waited for some seconds, and has told so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Wait {
    /// As its client calls it.
    pub(crate) owner: String,
    pub(crate) mode: String,
    /// By the clock of its host, compared with that of this one.
    pub(crate) seconds: f64,
    /// The line of the program that waits.
    pub(crate) site: String,
    pub(crate) client: Who,
}

/// What a client writes of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Record {
    v: u32,
    host: String,
    program: String,
    pid: u32,
    waits: Vec<WaitRecord>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WaitRecord {
    lock: String,
    mode: String,
    owner: String,
    site: String,
    /// Milliseconds of Unix time.
    since: u64,
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
        let Ok(record) = serde_json::from_str::<Record>(record) else { return };
        if record.v != VERSION {
            return;
        }
        let known = |text: String| (!text.is_empty()).then_some(text);
        let (host, program) = (known(record.host), known(record.program));
        let who = Who { host, program, pid: (record.pid != 0).then_some(record.pid) };
        for WaitRecord { lock, mode, owner, site, since } in record.waits {
            let since = UNIX_EPOCH.checked_add(Duration::from_millis(since));
            let time = since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
            let (seconds, client) = (time.as_secs_f64(), who.clone());
            let wait = Wait { owner, mode, seconds, site, client };
            self.waits.entry(lock).or_default().push(wait);
        }
        self.by_id.insert(id, who);
    }

    /// The process of an owner on the wire, which is called `<client id>:<number>`.
    pub(crate) fn who(&self, owner: &str) -> Option<&Who> {
        let (id, _) = owner.rsplit_once(':')?;
        self.by_id.get(id)
    }

    /// Who has told of waiting for the name, the one who has waited longest first.
    pub(crate) fn waits(&self, name: &str) -> Vec<Wait> {
        let mut waits = self.waits.get(name).cloned().unwrap_or_default();
        waits.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        waits
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
    use std::time::SystemTime;

    use lockcore_memory::MemoryBackend;

    use super::*;

    async fn clients(records: &[(&str, &str)]) -> Clients {
        let store = MemoryBackend::new();
        for (id, record) in records {
            store.put_client(id, record, Duration::from_secs(60)).await.unwrap();
        }
        Clients::read(Some(&store), &mut Pace::new(0)).await.unwrap()
    }

    #[tokio::test]
    async fn an_owner_is_found_by_the_id_of_its_client() {
        let clients = clients(&[
            ("1-2", r#"{"v": 1, "host": "web-3", "program": "shop", "pid": 7, "more": [1]}"#),
            ("3", r#"{"v": 1, "pid": 8}"#),
            ("4", "no JSON"),
            ("5", r#"{"v": 2, "host": "later"}"#),
        ])
        .await;
        let said = |owner| clients.who(owner).map(ToString::to_string);
        assert_eq!(said("1-2:17").as_deref(), Some("web-3 shop 7"));
        assert_eq!(said("3:1").as_deref(), Some("8"));
        for unknown in ["4:1", "5:1", "6:1", "1-2", "", "named"] {
            assert_eq!(said(unknown), None, "{unknown}");
        }
        let none = Clients::read(None, &mut Pace::new(0)).await.unwrap();
        assert!(none.by_id.is_empty());
    }

    #[tokio::test]
    async fn waits_are_found_by_the_name_of_the_lock() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let wait = |seconds: u128, owner: &str| {
            let since = now - seconds * 1000;
            format!(r#"{{"lock": "a", "owner": "{owner}", "since": {since}, "site": "x.rs:1"}}"#)
        };
        let record = |waits: &[String]| {
            format!(r#"{{"v": 1, "host": "h", "waits": [{}]}}"#, waits.join(","))
        };
        let one = record(&[wait(5, "x"), r#"{"lock": "b", "since": 9999999999999999}"#.into()]);
        let other = record(&[wait(60, "y")]);
        let clients = clients(&[("1", one.as_str()), ("2", other.as_str())]).await;
        let waits = clients.waits("a");
        let owners: Vec<_> = waits.iter().map(|wait| wait.owner.as_str()).collect();
        assert_eq!(owners, ["y", "x"]);
        assert!((60.0..70.0).contains(&waits[0].seconds), "{waits:?}");
        assert_eq!((&*waits[0].site, waits[0].client.to_string()), ("x.rs:1", "h".to_owned()));
        assert_eq!(clients.waits("b")[0].seconds, 0.0, "a clock that is ahead");
        assert!(clients.waits("c").is_empty());
    }
}
