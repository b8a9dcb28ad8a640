//! The Lua scripts, and the commands that call them.

use std::sync::{LazyLock, OnceLock};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::cluster::Publishing;

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct LuaScript {
    /// The purpose of the script, for error messages.
    pub(crate) name: &'static str,
    source: &'static str,
    digest: LazyLock<String>,
    /// The script as it runs on the nodes of a cluster, for each way to publish: with all of its
    /// keys declared, and with keys among its arguments.
    on_cluster: [[OnceLock<ClusterScript>; 2]; Publishing::COUNT],
}

#[derive(Debug)]
struct ClusterScript {
    source: String,
    digest: String,
}

impl LuaScript {
    const fn new(name: &'static str, source: &'static str, digest: fn() -> String) -> Self {
        let on_cluster = [const { [const { OnceLock::new() }; 2] }; Publishing::COUNT];
        Self { name, source, digest: LazyLock::new(digest), on_cluster }
    }

    /// Creates a command that calls the script on a single server, or on a node of a cluster, which
    /// publishes as `publishing` says. The caller adds the keys and then the arguments.
    pub(crate) fn command(
        &self,
        by_digest: bool,
        publishing: Option<Publishing>,
        size: CallSize,
    ) -> Cmd {
        let script = match publishing {
            None if by_digest => self.digest.as_str(),
            None => self.source,
            Some(publishing) => self.with_declared_keys(publishing).text(by_digest),
        };
        command(by_digest, script, size)
    }

    /// Creates a command that calls the script on a node of a cluster, with keys in different
    /// slots. None of them is declared. The caller adds them and then the arguments.
    pub(crate) fn command_of_slots(
        &self,
        by_digest: bool,
        publishing: Publishing,
        size: CallSize,
    ) -> Cmd {
        let script = self.with_undeclared_keys(publishing).text(by_digest);
        let undeclared = CallSize { keys: 0, args: 2 + size.keys + size.args, ..size };
        let mut command = command(by_digest, script, undeclared);
        command.arg(0).arg(size.keys);
        command
    }

    /// The script for a call with all keys declared.
    fn with_declared_keys(&self, publishing: Publishing) -> &ClusterScript {
        let [script, _] = &self.on_cluster[publishing.index()];
        script.get_or_init(|| {
            let body = self.source.replace("redis.pcall('PUBLISH', ", "send(");
            ClusterScript::new([publishing.header(), &body].concat())
        })
    }

    /// The script for a call with keys among its arguments: see `cluster_begin.lua`.
    fn with_undeclared_keys(&self, publishing: Publishing) -> &ClusterScript {
        let [_, script] = &self.on_cluster[publishing.index()];
        script.get_or_init(|| {
            let body = self.source.replace("redis.pcall('PUBLISH', ", "publish(");
            let body = body.replace("local function is_moving() return false end\n", "");
            let source = [
                publishing.header(),
                include_str!("scripts/cluster_begin.lua"),
                "local function run(KEYS, ARGV)\n",
                &body,
                "\nend\n",
                include_str!("scripts/cluster_end.lua"),
            ];
            ClusterScript::new(source.concat())
        })
    }
}

impl ClusterScript {
    fn new(source: String) -> Self {
        Self { digest: digest(&source), source }
    }

    fn text(&self, by_digest: bool) -> &str {
        if by_digest { &self.digest } else { &self.source }
    }
}

/// The number of keys and arguments of a call, and about how many bytes they have together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSize {
    pub(crate) keys: usize,
    pub(crate) args: usize,
    pub(crate) bytes: usize,
}

fn command(by_digest: bool, script: &str, size: CallSize) -> Cmd {
    let name = if by_digest { "EVALSHA" } else { "EVAL" };
    let CallSize { keys, args, bytes } = size;
    let mut command = Cmd::with_capacity(3 + keys + args, name.len() + script.len() + 8 + bytes);
    command.arg(name).arg(script).arg(keys);
    command
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

/// `acquire.lua` as a function, for the scripts that try a shorter way first.
macro_rules! acquire_function {
    () => {
        function!("acquire", "store_token" "token" "overtaken" "hold" "acquire" "issue" "grant")
    };
}

pub(crate) static BATCH: LuaScript = {
    const SOURCE: &str = concat!(
        acquire_function!(),
        include_str!("scripts/batch_begin.lua"),
        include_str!("scripts/batch.lua"),
        include_str!("scripts/batch_end.lua"),
    );
    LuaScript::new("batch", SOURCE, || digest(SOURCE))
};

/// [`BATCH`] for a node of a cluster.
pub(crate) static BATCH_OF_SLOTS: LuaScript = {
    const SOURCE: &str = concat!(
        acquire_function!(),
        include_str!("scripts/batch_begin.lua"),
        include_str!("scripts/batch_of_slots.lua"),
        include_str!("scripts/batch_end.lua"),
    );
    LuaScript::new("batch", SOURCE, || digest(SOURCE))
};

/// A batch of locks that were recently released, for a node of a cluster.
pub(crate) static BATCH_OF_RECENT: LuaScript = {
    const SOURCE: &str = include_str!("scripts/batch_of_recent.lua");
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

/// [`ACQUIRE`] for a lock that is most likely free.
pub(crate) static ACQUIRE_FREE: LuaScript = {
    const SOURCE: &str = concat!(acquire_function!(), include_str!("scripts/acquire_free.lua"),);
    LuaScript::new("acquire", SOURCE, || digest(SOURCE))
};

pub(crate) static RELEASE_FAIR: LuaScript = {
    const SOURCE: &str = concat!(
        include_str!("scripts/now.lua"),
        include_str!("scripts/queue.lua"),
        include_str!("scripts/places.lua"),
        include_str!("scripts/not_moving.lua"),
        function!("grant_directly", "store_token" "token" "grant_directly"),
        include_str!("scripts/release_fair.lua"),
    );
    LuaScript::new("release", SOURCE, || digest(SOURCE))
};

script!(ACQUIRE, "acquire", "store_token" "token" "overtaken" "hold" "acquire" "issue" "grant");
script!(
    ACQUIRE_FAIR, "acquire",
    "now" "queue" "places" "store_token" "token" "overtaken" "hold" "acquire_fair" "issue"
    "leave_fair" "grant"
);
script!(
    ACQUIRE_READ, "acquire",
    "now" "not_moving" "holds" "store_token" "token" "overtaken" "hold_read_write" "acquire_read"
    "grant_read_write"
);
script!(
    ACQUIRE_WRITE, "acquire",
    "now" "not_moving" "holds" "store_token" "token" "overtaken" "hold_read_write" "acquire_write"
    "grant_read_write"
);
script!(
    ACQUIRE_PERMITS, "acquire",
    "now" "permits" "store_token" "token" "semaphore" "acquire_permits"
);
script!(
    RENEW, "renew",
    "now" "not_moving" "holds" "permits" "renew_exclusive" "renew_read_write" "renew_permits" "renew"
);
script!(RELEASE, "release", "release");
script!(RELEASE_READ_WRITE, "release", "not_moving" "holds" "release_read_write");
script!(RELEASE_PERMITS, "release", "now" "permits" "release_permits");
script!(
    FORCE_RELEASE, "force_release",
    "now" "queue" "not_moving" "holds" "permits" "force_read_write" "force_permits" "force_release"
);
script!(
    INSPECT, "inspect",
    "now" "exists" "not_moving" "holds" "permits" "inspect_read_write" "inspect_permits" "inspect"
);
script!(RAISE_TOKEN, "raise_token", "store_token" "raise_token");
script!(FORGET, "forget", "now" "forget");
script!(RESIZE, "resize", "now" "permits" "semaphore" "resize");
script!(LATCH_SET, "set_count", "now" "exists" "latch" "latch_set");
script!(LATCH_COUNT_DOWN, "count_down", "now" "exists" "latch" "latch_count_down");
script!(LATCH_COUNT, "count", "now" "exists" "latch" "latch_count");
script!(LATCH_OPEN, "open", "now" "exists" "latch" "latch_open");
script!(PROBE, "probe", "probe");
script!(NAMES, "names", "now" "names");
script!(STORAGE, "storage", "now" "exists" "storage");
script!(CLIENT_PUT, "put_client", "not_moving" "client_put");
script!(CLIENT_REMOVE, "remove_client", "client_remove");
script!(CLIENTS, "clients", "not_moving" "clients");
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
#[derive(Clone, Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static LuaScript,
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
    /// The number of keys at the end that may be absent while the first ones exist. On a cluster
    /// they are not declared, because that would fail the call while their slot moves.
    pub(crate) optional: usize,
}

impl ScriptCall {
    /// The command with all keys declared, for a single server or for a node of a cluster, which
    /// publishes as `publishing` says.
    pub(crate) fn command(&self, by_digest: bool, publishing: Option<Publishing>) -> Cmd {
        let size = CallSize { keys: self.keys.len(), args: self.args.len(), bytes: self.bytes() };
        let mut command = self.script.command(by_digest, publishing, size);
        for part in self.parts() {
            command.arg(part);
        }
        command
    }

    /// The keys and then the arguments.
    fn parts(&self) -> impl Iterator<Item = &String> {
        self.keys.iter().chain(&self.args)
    }

    fn bytes(&self) -> usize {
        self.parts().map(String::len).sum()
    }

    /// The command for a node of a cluster. Keys that may be absent are not declared.
    ///
    /// After an ASK, only the first key is declared: a key that is not there would fail the call,
    /// and the node that answered so has none of them. The script handles missing keys. The reply
    /// then has the messages that were published.
    pub(crate) fn cluster_command(
        &self,
        by_digest: bool,
        publishing: Publishing,
        is_asking: bool,
    ) -> Cmd {
        if !is_asking && self.optional == 0 {
            return self.command(by_digest, Some(publishing));
        }
        let script = self.script.with_undeclared_keys(publishing).text(by_digest);
        let required = self.keys.len().saturating_sub(self.optional);
        let declared = if is_asking { 1 } else { required.max(1) };
        let (declared, others) = self.keys.split_at(declared.min(self.keys.len()));
        let size = CallSize {
            keys: declared.len(),
            args: 2 + others.len() + self.args.len(),
            bytes: self.bytes(),
        };
        let mut command = command(by_digest, script, size);
        for key in declared {
            command.arg(key);
        }
        command.arg(u8::from(is_asking)).arg(others.len());
        for part in others.iter().chain(&self.args) {
            command.arg(part);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_cluster_every_message_of_a_script_goes_where_it_is_to_be_published() {
        for publishing in [Publishing::Sharded, Publishing::Plain, Publishing::Both] {
            let body_of = |script: &'static ClusterScript| {
                script.source.split_once("Releases a hold of a fair lock").unwrap().1
            };
            let body = body_of(RELEASE_FAIR.with_declared_keys(publishing));
            assert!(body.contains("send(ARGV[3], '00')"), "{body}");
            let body = body_of(RELEASE_FAIR.with_undeclared_keys(publishing));
            assert!(body.contains("publish(ARGV[3], '00')"), "{body}");
        }
        let scripts = [
            &BATCH_OF_SLOTS,
            &BATCH_OF_RECENT,
            &ACQUIRE_FREE,
            &ACQUIRE,
            &ACQUIRE_FAIR,
            &ACQUIRE_READ,
            &ACQUIRE_WRITE,
            &ACQUIRE_PERMITS,
            &RENEW,
            &RELEASE,
            &RELEASE_FAIR,
            &RELEASE_READ_WRITE,
            &RELEASE_PERMITS,
            &FORCE_RELEASE,
            &INSPECT,
            &RAISE_TOKEN,
            &FORGET,
            &STORAGE,
            &RESIZE,
            &LATCH_SET,
            &LATCH_COUNT_DOWN,
            &LATCH_COUNT,
            &LATCH_OPEN,
            &PROBE,
            &CONDITION_JOIN,
            &CONDITION_STAY,
            &CONDITION_LEAVE,
            &CONDITION_NOTIFY,
        ];
        for script in scripts {
            let sharded = Publishing::Sharded;
            for script in [script.with_declared_keys(sharded), script.with_undeclared_keys(sharded)]
            {
                assert!(!script.source.contains("'PUBLISH'"), "{}", script.source);
            }
        }
    }

    #[test]
    fn keys_that_may_be_absent_are_not_declared_on_a_cluster() {
        let [keys, args] = [["k1", "k2", "k3"], ["a1", "a2", "a3"]];
        let call = ScriptCall {
            script: &RELEASE,
            keys: keys.map(str::to_owned).to_vec(),
            args: args.map(str::to_owned).to_vec(),
            optional: 1,
        };
        let parts = |call: &ScriptCall, is_asking| {
            let command = call.cluster_command(true, Publishing::Plain, is_asking);
            let parts = command.args_iter().skip(2).map(|part| match part {
                redis::Arg::Simple(part) => String::from_utf8(part.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            });
            parts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(parts(&call, false), "2 k1 k2 0 1 k3 a1 a2 a3");
        assert_eq!(parts(&call, true), "1 k1 1 2 k2 k3 a1 a2 a3");
        let call = ScriptCall { optional: 0, ..call };
        assert_eq!(parts(&call, false), "3 k1 k2 k3 a1 a2 a3");
    }
}
