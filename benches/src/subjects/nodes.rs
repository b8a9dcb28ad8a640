//! [`Nodes`]: the primaries behind a URL, and the slots of each.

use std::ops::RangeInclusive;

use crc::{CRC_16_XMODEM, Crc};

use crate::error::Result;

const SLOT_OF: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
const SLOTS: u16 = 16_384;

/// The primaries of a cluster whose slots stay where they are, or a single server.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    urls: Vec<String>,
    slots: Vec<(RangeInclusive<u16>, usize)>,
}

/// A range of slots, and the primary that serves it.
type Range = (u16, u16, (String, u16, String, Vec<String>));

impl Nodes {
    /// Asks a cluster for its map: `redis+cluster://host:port,host:port`. Any other URL is that of
    /// a single server.
    pub(crate) async fn find(url: &str) -> Result<Self> {
        let Some(addresses) = url.strip_prefix("redis+cluster://") else {
            return Ok(Self { urls: vec![url.to_owned()], slots: vec![(0..=SLOTS - 1, 0)] });
        };
        let first = addresses.split(',').next().unwrap_or_default();
        let client = redis::Client::open(format!("redis://{first}"))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let ranges: Vec<Range> =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
        let mut nodes = Self { urls: Vec::new(), slots: Vec::new() };
        for (from, to, (host, port, ..)) in ranges {
            let url = format!("redis://{host}:{port}");
            let known = nodes.urls.iter().position(|known| *known == url);
            let index = known.unwrap_or(nodes.urls.len());
            if known.is_none() {
                nodes.urls.push(url);
            }
            nodes.slots.push((from..=to, index));
        }
        Ok(nodes)
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The index of the primary of a name without braces.
    pub(crate) fn of(&self, name: &str) -> usize {
        let slot = SLOT_OF.checksum(name.as_bytes()) % SLOTS;
        let serves = |(slots, _): &&(RangeInclusive<u16>, usize)| slots.contains(&slot);
        self.slots.iter().find(serves).map_or(0, |(_, index)| *index)
    }
}
