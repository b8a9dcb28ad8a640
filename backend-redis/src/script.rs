//! The Lua scripts, and the commands that call them.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct LuaScript {
    /// What the script does, for error messages.
    pub(crate) name: &'static str,
    source: &'static str,
    digest: LazyLock<String>,
}

impl LuaScript {
    const fn new(name: &'static str, source: &'static str, digest: fn() -> String) -> Self {
        Self { name, source, digest: LazyLock::new(digest) }
    }

    /// Creates a command that calls the script. The caller adds `keys` keys and then `args`
    /// arguments. `size` is about how many bytes they have together.
    pub(crate) fn command(&self, by_digest: bool, keys: usize, args: usize, size: usize) -> Cmd {
        let (name, script) = match by_digest {
            true => ("EVALSHA", self.digest.as_str()),
            false => ("EVAL", self.source),
        };
        let mut command = Cmd::with_capacity(3 + keys + args, name.len() + script.len() + 8 + size);
        command.arg(name).arg(script).arg(keys);
        command
    }
}

/// Makes a script a Lua function of its KEYS and ARGV, for use in another script.
macro_rules! function {
    ($name:literal, $($file:literal)+) => {
        concat!(
            "local function ", $name, "(KEYS, ARGV)\n",
            $(include_str!(concat!("scripts/", $file, ".lua"))),+,
            "\nend\n"
        )
    };
}

pub(crate) static BATCH: LuaScript = {
    const SOURCE: &str = concat!(
        function!("acquire", "token" "overtaken" "hold" "acquire" "issue" "grant"),
        function!("release", "release"),
        include_str!("scripts/batch.lua"),
    );
    LuaScript::new("batch", SOURCE, || digest(SOURCE))
};

/// Declares a script as the concatenation of files.
macro_rules! script {
    ($script:ident, $name:literal, $($file:literal)+) => {
        pub(crate) static $script: LuaScript = {
            const SOURCE: &str = concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+);
            LuaScript::new($name, SOURCE, || digest(SOURCE))
        };
    };
}

script!(ACQUIRE, "acquire", "token" "overtaken" "hold" "acquire" "issue" "grant");
script!(
    ACQUIRE_FAIR, "acquire",
    "now" "queue" "token" "overtaken" "hold" "acquire_fair" "issue" "leave_fair" "grant"
);
script!(
    ACQUIRE_READ, "acquire",
    "now" "holds" "token" "overtaken" "hold_read_write" "acquire_read" "grant_read_write"
);
script!(
    ACQUIRE_WRITE, "acquire",
    "now" "holds" "token" "overtaken" "hold_read_write" "acquire_write" "grant_read_write"
);
script!(ACQUIRE_PERMITS, "acquire", "now" "permits" "token" "semaphore" "acquire_permits");
script!(
    RENEW, "renew",
    "now" "holds" "permits" "renew_exclusive" "renew_read_write" "renew_permits" "renew"
);
script!(RELEASE, "release", "release");
script!(RELEASE_FAIR, "release", "now" "queue" "release_fair");
script!(RELEASE_READ_WRITE, "release", "holds" "release_read_write");
script!(RELEASE_PERMITS, "release", "now" "permits" "release_permits");
script!(
    FORCE_RELEASE, "force_release",
    "now" "queue" "holds" "permits" "force_read_write" "force_permits" "force_release"
);
script!(
    INSPECT, "inspect",
    "now" "holds" "permits" "inspect_read_write" "inspect_permits" "inspect"
);
script!(RESIZE, "resize", "now" "permits" "semaphore" "resize");
script!(LATCH_SET, "set_count", "now" "latch" "latch_set");
script!(LATCH_COUNT_DOWN, "count_down", "now" "latch" "latch_count_down");
script!(LATCH_COUNT, "count", "now" "latch" "latch_count");
script!(LATCH_OPEN, "open", "now" "latch" "latch_open");
script!(CONDITION_JOIN, "join", "now" "queue" "condition" "condition_join");
script!(CONDITION_STAY, "stay", "now" "queue" "condition" "condition_stay");
script!(CONDITION_LEAVE, "leave", "now" "queue" "condition" "condition_leave");
script!(CONDITION_NOTIFY, "notify", "now" "queue" "condition" "condition_notify");

fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// Returns `true` if the server does not know the script, so that its source has to be sent.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A call of a script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static LuaScript,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
}

impl ScriptCall {
    pub(crate) fn command(&self, by_digest: bool) -> Cmd {
        let parts = self.keys.iter().chain(&self.args);
        let mut command = self.script.command(
            by_digest,
            self.keys.len(),
            self.args.len(),
            parts.map(String::len).sum(),
        );
        for key in &self.keys {
            command.arg(key);
        }
        for arg in &self.args {
            command.arg(arg);
        }
        command
    }
}
