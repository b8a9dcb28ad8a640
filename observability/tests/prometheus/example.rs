//! [`Example`]: the example `metrics`, as a process.

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
};

use lockcore_observability::free_port;

/// How many ports are tried if other processes take them first.
const ATTEMPTS: u32 = 20;

/// The example `metrics` on a free port, stopped on drop, even if the test panics.
pub(crate) struct Example {
    process: Child,
    address: SocketAddr,
}

impl Example {
    /// Starts it on the Redis at `url`.
    pub(crate) fn start(url: &str) -> Self {
        for _ in 0..ATTEMPTS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
            let mut process = Command::new(env!("CARGO_BIN_EXE_metrics-example"))
                .args(["--redis", url])
                .env("METRICS_ADDRESS", address.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let output = process.stdout.take().unwrap();
            let example = Self { process, address };
            BufReader::new(output).read_line(&mut line).unwrap();
            if line.starts_with("serving") {
                return example;
            }
        }
        panic!("the example did not start; what it said is above");
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Errors mean that the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
