//! The scripts, and how one is called.

use std::sync::LazyLock;

use lockcore::BackendError;
use redis::{Cmd, ErrorKind, ServerErrorKind, Value, aio::MultiplexedConnection};

use crate::error;

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    /// What it does, for error messages.
    name: &'static str,
    source: &'static str,
    digest: LazyLock<String>,
}

pub(crate) static ACQUIRE: Script =
    Script { name: "acquire", source: ACQUIRE_SOURCE, digest: LazyLock::new(|| digest(ACQUIRE_SOURCE)) };
pub(crate) static RENEW: Script =
    Script { name: "renew", source: RENEW_SOURCE, digest: LazyLock::new(|| digest(RENEW_SOURCE)) };
pub(crate) static RELEASE: Script =
    Script { name: "release", source: RELEASE_SOURCE, digest: LazyLock::new(|| digest(RELEASE_SOURCE)) };
pub(crate) static FORCE_RELEASE: Script = Script {
    name: "force_release",
    source: FORCE_RELEASE_SOURCE,
    digest: LazyLock::new(|| digest(FORCE_RELEASE_SOURCE)),
};
pub(crate) static INSPECT: Script =
    Script { name: "inspect", source: INSPECT_SOURCE, digest: LazyLock::new(|| digest(INSPECT_SOURCE)) };

const ACQUIRE_SOURCE: &str = include_str!("scripts/acquire.lua");
const RENEW_SOURCE: &str = include_str!("scripts/renew.lua");
const RELEASE_SOURCE: &str = include_str!("scripts/release.lua");
const FORCE_RELEASE_SOURCE: &str = include_str!("scripts/force_release.lua");
const INSPECT_SOURCE: &str = include_str!("scripts/inspect.lua");

fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// One call of a script.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: &'a [&'a str],
    pub(crate) args: &'a [&'a [u8]],
}

impl Call<'_> {
    /// Sends the call once. A server that does not know the script has not run it, so the source may follow.
    pub(crate) async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, BackendError> {
        let by_digest = self.command("EVALSHA", &self.script.digest).query_async(connection).await;
        let reply = match by_digest {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.command("EVAL", self.script.source).query_async(connection).await
            }
            reply => reply,
        };
        reply.map_err(|error| error::of_request(error, self.script.name))
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for key in self.keys {
            command.arg(key);
        }
        for arg in self.args {
            command.arg(arg);
        }
        command
    }
}
