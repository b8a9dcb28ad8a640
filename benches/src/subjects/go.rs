//! The libraries for Go, in a separate program: `interop/go`, which the benchmark builds. It reads
//! the same orders and writes the same answers as the workers in Rust.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::error::{Result, failure};

const INSTALL: &str = "Install Go 1.26 or newer (https://go.dev/doc/install) so that `go` is in \
                       PATH, and run this again";

/// The built program, beside this one in the target directory.
pub(crate) fn program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("lockcore-bench-go"))
}

/// Builds the program. Go downloads the modules of `go.sum` once.
pub(crate) fn build() -> Result<()> {
    build_with("go", &program()?)
}

fn build_with(go: &str, program: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/go");
    let mut command = Command::new(go);
    command.current_dir(&source).args(["build", "-buildvcs=false", "-o"]).arg(program).arg(".");
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failure(format!("there is no Go for `--go`. {INSTALL}")),
        _ => failure(format!("`{go}` cannot be started: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failure(format!("Go could not build {}:\n{said}{INSTALL}", source.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_go_is_an_error_that_says_how_to_install_it() {
        let error = build_with("no-such-go", Path::new("unused")).unwrap_err().to_string();
        assert!(error.contains("there is no Go") && error.contains("https://go.dev"), "{error}");
    }
}

/// With the real libraries: `./scripts/go-peers` runs these.
#[cfg(all(test, feature = "go"))]
#[allow(
    clippy::unwrap_used,
    reason = "outside of the test functions as well: this is how a test fails"
)]
mod with_go {
    use std::{sync::LazyLock, time::Duration};

    use super::*;
    use crate::{
        measure::{load::Span, server::Server},
        subjects::{Names, Runtime, Subject},
        worker::{Order, Worker},
    };

    const LEASE: Duration = Duration::from_secs(30);

    /// The number of attempts at a load.
    const ATTEMPTS: usize = 3;

    fn subjects() -> impl Iterator<Item = Subject> {
        static BUILT: LazyLock<()> = LazyLock::new(|| build().unwrap());
        LazyLock::force(&BUILT);
        Subject::ALL.into_iter().filter(|subject| subject.runtime() == Runtime::Go)
    }

    async fn worker(subject: Subject, server: &Server, lease: Duration) -> Worker {
        Worker::start(subject, &server.url(), lease).await.unwrap()
    }

    #[tokio::test]
    async fn each_library_acquires_and_releases_under_the_key_that_is_said() {
        let server = Server::start().await.unwrap();
        for subject in subjects() {
            let mut worker = worker(subject, &server, LEASE).await;
            let before = server.calls().await.unwrap();
            let keys = [subject.key("name")];
            let had = worker.stamp(Order::Acquire("name".into())).await.unwrap();
            let left = server.left(&keys).await.unwrap()[0];
            assert!((29_000..=30_000).contains(&left), "{subject:?} has {left} ms");
            let released = worker.stamp(Order::Release).await.unwrap();
            assert!(server.left(&keys).await.unwrap()[0] < 0, "{subject:?} has released");
            assert!(had < released && released <= lockcore_testkit::monotonic());
            let calls = server.calls().await.unwrap().since(&before).of(subject.commands());
            assert!((2..=4).contains(&calls), "{subject:?}: {calls} commands");
        }
    }

    #[tokio::test]
    async fn each_library_carries_out_a_load() {
        let server = Server::start().await.unwrap();
        let span = Span { warm_up: Duration::from_millis(20), measured: LEASE / 100 };
        for subject in subjects() {
            for names in [Names::One("one".into()), Names::Each("each".into())] {
                let mut load = None;
                // On a busy machine, a library may miss a wake-up. The benchmark reports that then.
                for _ in 0..ATTEMPTS {
                    let mut worker = worker(subject, &server, LEASE).await;
                    load = Some(worker.load(names.clone(), 4, span).await.unwrap());
                    if load.as_ref().is_some_and(|load| load.reason.is_none()) {
                        break;
                    }
                }
                let load = load.unwrap();
                assert_eq!(load.reason, None, "{subject:?}");
                assert!(load.pairs.len() == 4 && load.all_pairs >= load.total(), "{load:?}");
                assert!(load.total() > 0 && load.took >= span.measured, "{load:?}");
                let waits: u64 = load.waits.iter().map(|(_, count)| count).sum();
                assert_eq!(waits, load.total(), "{subject:?}");
            }
        }
    }

    #[tokio::test]
    async fn each_library_waits_for_another_process() {
        let server = Server::start().await.unwrap();
        for subject in subjects() {
            // Each subject has a name of its own, because its waiter keeps the lock.
            let name = format!("{subject:?}");
            let mut holder = worker(subject, &server, LEASE).await;
            let mut waiter = worker(subject, &server, LEASE).await;
            holder.stamp(Order::Acquire(name.clone())).await.unwrap();
            let before = server.calls().await.unwrap();
            let attempts =
                async || server.calls().await.unwrap().since(&before).of(subject.commands());
            let release = async {
                while attempts().await == 0 {
                    tokio::task::yield_now().await;
                }
                holder.stamp(Order::Release).await.unwrap()
            };
            let acquire = waiter.stamp(Order::Acquire(name.clone()));
            let (had, released) = tokio::join!(acquire, release);
            assert!(had.unwrap() > released, "{subject:?}");
        }
    }

    #[tokio::test]
    async fn each_library_takes_over_from_a_process_that_ended() {
        let server = Server::start().await.unwrap();
        for subject in subjects() {
            let mut holder = worker(subject, &server, Duration::from_secs(1)).await;
            let mut waiter = worker(subject, &server, Duration::from_secs(1)).await;
            let hold = Order::Hold { prefix: "taken".into(), from: 0, count: 3 };
            holder.carry_out(hold).await.unwrap();
            let wait = Order::Await { prefix: "taken".into(), count: 3 };
            waiter.carry_out(wait).await.unwrap();
            holder.kill().await.unwrap();
            let grants = waiter.stamps(Order::Grants).await.unwrap();
            assert!(grants.len() == 3 && grants.iter().all(|at| *at > 0), "{subject:?}");
        }
    }

    #[tokio::test]
    async fn rueidislock_extends_what_it_holds() {
        let server = Server::start().await.unwrap();
        let rueidislock = subjects().find(|subject| *subject == Subject::Rueidislock).unwrap();
        let lease = Duration::from_millis(900);
        let mut worker = worker(rueidislock, &server, lease).await;
        worker.stamp(Order::Acquire("name".into())).await.unwrap();
        tokio::time::sleep(2 * lease).await;
        let left = server.left(&[rueidislock.key("name")]).await.unwrap()[0];
        assert!(left > 0, "{left} ms");
    }

    #[tokio::test]
    async fn what_is_not_measured_of_go_is_refused() {
        let server = Server::start().await.unwrap();
        for subject in subjects() {
            let mut worker = worker(subject, &server, LEASE).await;
            let refused = worker.stamps(Order::Nest { samples: 1, pairs: 1 }).await.unwrap_err();
            assert!(refused.to_string().contains("is not measured"), "{refused}");
            let refused = worker.stamp(Order::Release).await.unwrap_err();
            assert!(refused.to_string().contains("nothing is held"), "{refused}");
        }
    }
}
