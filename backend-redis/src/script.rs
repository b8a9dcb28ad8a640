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

impl Script {
    const fn new(name: &'static str, source: &'static str, digest: fn() -> String) -> Self {
        Self { name, source, digest: LazyLock::new(digest) }
    }
}

/// Declares a script that consists of these files, one after the other.
macro_rules! script {
    ($script:ident, $name:literal, $($file:literal)+) => {
        pub(crate) static $script: Script = {
            const SOURCE: &str = concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+);
            Script::new($name, SOURCE, || digest(SOURCE))
        };
    };
}

script!(ACQUIRE, "acquire", "hold" "acquire" "grant");
script!(ACQUIRE_FAIR, "acquire", "queue" "hold" "acquire_fair" "grant");
script!(RENEW, "renew", "renew");
script!(RELEASE, "release", "release");
script!(RELEASE_FAIR, "release", "queue" "release_fair");
script!(FORCE_RELEASE, "force_release", "queue" "force_release");
script!(INSPECT, "inspect", "inspect");

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
