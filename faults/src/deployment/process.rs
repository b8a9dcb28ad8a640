//! [`Process`]: what can be done to a server of any kind.

use lockcore_testkit::{PostgresServer, RedisServer};

/// A server, as a process that can be made to fail.
pub(crate) trait Process {
    /// Kills it as a crash would.
    fn kill(&mut self);

    /// Starts it again with the data that it had written.
    fn restart(&mut self);

    /// Stops it: its connections stay open, and nothing is answered.
    fn freeze(&mut self);

    /// Lets it go on.
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
