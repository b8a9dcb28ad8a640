//! [`Prometheus`]: a private server for a test, and [`promtool`].

use std::{
    error::Error,
    fmt::Write as _,
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// How many ports are tried if other processes take them first.
const ATTEMPTS: u32 = 20;

/// The time limit for a server to come up.
const START: Duration = Duration::from_secs(30);

/// The error of a test here.
type Failure = Box<dyn Error + Send + Sync>;

/// A private Prometheus for one test: on a free port, with its own directory, stopped and removed
/// on drop, even if the test panics. It scrapes and evaluates rules four times a second.
///
/// The executables are `prometheus` and `promtool` from the `PATH`.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    port: u16,
    directory: PathBuf,
}

/// One value of the result of a query.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The labels, as a JSON object.
    pub labels: Value,
    /// The value, which is NaN where Prometheus says so.
    pub value: f64,
}

/// A free port on 127.0.0.1.
///
/// # Errors
/// The errors of the system.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Runs `promtool` with these arguments in `directory`.
///
/// # Errors
/// If there is no `promtool`, with a message that says how to install it.
pub fn promtool(directory: &Path, arguments: &[&str]) -> Result<Output, Failure> {
    let run = Command::new("promtool").args(arguments).current_dir(directory).output();
    run.map_err(|error| not_started("promtool", &error))
}

fn not_started(program: &str, error: &io::Error) -> Failure {
    if error.kind() != io::ErrorKind::NotFound {
        return format!("{program} did not start: {error}").into();
    }
    format!(
        "{program} is not installed: run ./scripts/test, which installs it, or install it yourself \
         (Debian, Ubuntu: apt-get install prometheus; Fedora: dnf install \
         golang-github-prometheus; macOS: brew install prometheus)"
    )
    .into()
}

impl Prometheus {
    /// Starts a server that scrapes `target` and has these rules.
    ///
    /// # Errors
    /// If Prometheus is missing, with a message that says how to install it; or if it does not
    /// start, with its output.
    pub fn start(target: SocketAddr, rules: &str) -> Result<Self, Failure> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockcore-prometheus-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory)?;
        let configuration = format!(
            "global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n\
             - job_name: lockcore\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(directory.join("prometheus.yml"), configuration)?;
        fs::write(directory.join("rules.yml"), rules)?;
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            match Self::try_start(&directory, free_port()?)? {
                Ok(process) => return Ok(process),
                Err(log) => said = log,
            }
            if !said.contains("address already in use") {
                break;
            }
        }
        let _ = fs::remove_dir_all(&directory);
        Err(format!("prometheus did not start: {said}").into())
    }

    /// Starts it on `port`, or returns its output.
    fn try_start(directory: &Path, port: u16) -> Result<Result<Self, String>, Failure> {
        let log = directory.join("log");
        let process = Command::new("prometheus")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .map_err(|error| not_started("prometheus", &error))?;
        let mut server = Self { process, port, directory: directory.to_owned() };
        let start = Instant::now();
        while start.elapsed() < START {
            // Its own log shows that this very process serves the port.
            let said = fs::read_to_string(&log)?;
            if said.contains("Server is ready to receive web requests") {
                return Ok(Ok(server));
            }
            if server.process.try_wait()?.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // The next attempt uses the directory.
        server.directory = PathBuf::new();
        drop(server);
        Ok(Err(fs::read_to_string(&log)?))
    }

    /// The current result of a query.
    ///
    /// # Errors
    /// The errors of the server, which explain what is wrong with the query.
    pub fn query(&self, query: &str) -> Result<Vec<Sample>, Failure> {
        let data = self.get(&format!("/api/v1/query?query={}", escaped(query)))?;
        let samples = data["result"].as_array().ok_or("the result is a list")?.iter();
        let samples = samples.map(|sample| {
            let value = sample["value"][1].as_str().ok_or("a value is text")?;
            Ok(Sample { labels: sample["metric"].clone(), value: value.parse()? })
        });
        samples.collect()
    }

    /// The kind (`recording` or `alerting`), the name and the query of each rule.
    ///
    /// # Errors
    /// The errors of the server.
    pub fn rules(&self) -> Result<Vec<(String, String, String)>, Failure> {
        let data = self.get("/api/v1/rules")?;
        let groups = data["groups"].as_array().ok_or("the groups are a list")?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
        let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        Ok(rules
            .map(|rule| (text(rule, "type"), text(rule, "name"), text(rule, "query")))
            .collect())
    }

    /// The answer of the API at `path`.
    fn get(&self, path: &str) -> Result<Value, Failure> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(START))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("the answer has a body")?;
        let mut body: Value = serde_json::from_str(body)?;
        if body["status"] != "success" {
            return Err(format!("{path}: {body}").into());
        }
        Ok(body["data"].take())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Errors mean that the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !self.directory.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// The text, escaped as a part of a URL.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
