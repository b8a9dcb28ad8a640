//! [`Java`]: a process of the program in `interop/java`.

use std::{
    collections::HashMap,
    env,
    future::Future,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tokio::sync::{oneshot, watch};

use crate::{
    client::{Configuration, Redisson},
    reply::{self, JavaError},
};

/// A Java process with Redisson. Clones share the process; it ends when the last of them is
/// dropped, together with its clients.
///
/// It does not depend on a runtime: tests with separate runtimes can share it.
#[derive(Clone, Debug)]
pub struct Java {
    process: Arc<Process>,
}

#[derive(Debug)]
struct Process {
    child: Mutex<Child>,
    /// `None` when the process must end. Requests are short, so that writing them does not block.
    stdin: Mutex<Option<ChildStdin>>,
    waiting: Arc<Waiting>,
    ended: watch::Receiver<bool>,
    next: AtomicU64,
}

/// The waiters for replies, by request; `None` when there will be no more replies.
type Waiting = Mutex<Option<HashMap<u64, oneshot::Sender<Result<String, JavaError>>>>>;

impl Java {
    /// Starts the program, which `mvn package` in `interop/java` has built.
    ///
    /// The Java is that of `JAVA_HOME`, or the one on the `PATH`.
    ///
    /// # Errors
    /// [`JavaError::NotStarted`], which says what to do about it.
    pub fn start() -> Result<Self, JavaError> {
        // Options for a quick start and a small process: the suite asks little of it.
        Self::start_with(&["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
    }

    /// Starts the program with other options of the virtual machine.
    ///
    /// # Errors
    /// [`JavaError::NotStarted`], which says what to do about it.
    pub fn start_with(options: &[&str]) -> Result<Self, JavaError> {
        let jar = Path::new(env!("CARGO_MANIFEST_DIR")).join("java/target/interop.jar");
        if !jar.is_file() {
            return Err(JavaError::NotStarted(format!("{} does not exist", jar.display())));
        }
        let mut child = Command::new(java())
            .args(options)
            .arg("-jar")
            .arg(&jar)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| JavaError::NotStarted(format!("java does not start: {error}")))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (ending, ended) = watch::channel(false);
        if let Some(stdout) = stdout {
            let waiting = waiting.clone();
            thread::spawn(move || {
                deliver(stdout, &waiting);
                // There will be no more replies for the waiters.
                locked(&waiting).take();
                ending.send_replace(true);
            });
        }
        let process = Process {
            child: Mutex::new(child),
            stdin: Mutex::new(stdin),
            waiting,
            ended,
            next: AtomicU64::new(1),
        };
        Ok(Self { process: Arc::new(process) })
    }

    /// A new, connected Redisson instance.
    ///
    /// # Errors
    /// [`JavaError`], also if it cannot connect.
    pub async fn connect(&self, configuration: &Configuration) -> Result<Redisson, JavaError> {
        let arguments = configuration.wire();
        let id = self.call("control", "connect", &arguments.each_ref().map(String::as_str)).await?;
        Ok(Redisson::new(self.clone(), id))
    }

    /// The versions of Redisson and of Java.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn versions(&self) -> Result<(String, String), JavaError> {
        let versions = self.call("control", "versions", &[]).await?;
        let (redisson, java) =
            versions.split_once(' ').ok_or_else(|| JavaError::Protocol(versions.clone()))?;
        Ok((redisson.to_owned(), java.to_owned()))
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        locked(&self.process.child).id()
    }

    /// Makes one thread carry out a verb of `Benchmark.java`, after its earlier ones.
    ///
    /// # Errors
    /// [`JavaError`].
    pub async fn benchmark(&self, verb: &str, arguments: &[&str]) -> Result<String, JavaError> {
        self.call("benchmark", verb, arguments).await
    }

    /// Ends the process at once, without any clean-up, like a crash, and returns when it is gone.
    ///
    /// # Errors
    /// [`JavaError::Ended`] if it had ended before.
    pub async fn halt(&self) -> Result<(), JavaError> {
        let _unanswered = self.request("control", "halt", &[])?;
        let mut ended = self.process.ended.clone();
        // An error means that the reader is gone, and so the process is.
        let _ = ended.wait_for(|ended| *ended).await;
        Ok(())
    }

    /// A number that is unique in this process.
    pub(crate) fn number(&self) -> u64 {
        self.process.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes `thread` carry out a verb. The request is sent at once, whether or not the future is
    /// polled.
    pub(crate) fn call(
        &self,
        thread: &str,
        verb: &str,
        arguments: &[&str],
    ) -> impl Future<Output = Result<String, JavaError>> + Send + 'static + use<> {
        let request = self.request(thread, verb, arguments);
        async move { request?.await.unwrap_or(Err(JavaError::Ended)) }
    }

    fn request(
        &self,
        thread: &str,
        verb: &str,
        arguments: &[&str],
    ) -> Result<oneshot::Receiver<Result<String, JavaError>>, JavaError> {
        let id = self.number();
        let line = reply::line(id, thread, verb, arguments)?;
        let (sender, receiver) = oneshot::channel();
        locked(&self.process.waiting).as_mut().ok_or(JavaError::Ended)?.insert(id, sender);
        let mut stdin = locked(&self.process.stdin);
        let stdin = stdin.as_mut().ok_or(JavaError::Ended)?;
        stdin
            .write_all(line.as_bytes())
            .and_then(|()| stdin.flush())
            .map_err(|_| JavaError::Ended)?;
        Ok(receiver)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input tells the program to end, whatever else it is doing.
        locked(&self.stdin).take();
        // Nothing can be done about an error.
        let _ = locked(&self.child).wait();
    }
}

/// Delivers every reply to its waiter, until there are no more.
fn deliver(stdout: ChildStdout, waiting: &Waiting) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        match reply::parse(&line) {
            Ok((id, result)) => {
                let waiter = locked(waiting).as_mut().and_then(|waiting| waiting.remove(&id));
                // If the future was dropped, nobody waits any more.
                let _ = waiter.map(|waiter| waiter.send(result));
            }
            Err(error) => eprintln!("interop: {error}"),
        }
    }
}

fn java() -> PathBuf {
    match env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin/java"),
        _ => PathBuf::from("java"),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
