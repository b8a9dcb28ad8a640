//! [`Process`]: the faults of a server of any kind.

use lockcore_testkit::{PostgresServer, RedisServer};

/// A server, as a process that can be made to fail.
pub(crate) trait Process {
    /// Kills it, like a crash.
    fn kill(&mut self);

    /// Restarts it with the data that it had written.
    fn restart(&mut self);

    /// Freezes it: its connections stay open, but it does not answer.
    fn freeze(&mut self);

    /// Resumes it.
    fn thaw(&mut self);
}

macro_rules! is_process {
    ($server:ty) => {
        impl Process for &mut $server {
            fn kill(&mut self) {
                <$server>::kill(self);
            }

            fn restart(&mut self) {
                <$server>::restart(self);
            }

            fn freeze(&mut self) {
                <$server>::freeze(self);
            }

            fn thaw(&mut self) {
                <$server>::thaw(self);
            }
        }
    };
}

is_process!(RedisServer);
is_process!(PostgresServer);
