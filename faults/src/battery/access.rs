//! Faults of rights, credentials, TLS and limits.

use std::{path::Path, process::Command, time::Duration};

use lockcore::{BackendErrorKind, Locks};
use lockcore_redis::RedisBackend;
use lockcore_testkit::{On, RedisServer};
use rustix::process::{Pid, Rlimit, prlimit};

use crate::{
    protocol::{Result, failure},
    report::{Report, Run},
    scene::{Judge, LEASE, RENEWAL, SECRET, SLACK, Scene, Setup, TIMEOUT},
};

const USER: &str = "worker";

/// A scene whose clients log in as a separate user with every right.
async fn open_with_user(run: Run, setup: Setup) -> Result<Scene> {
    let password = format!(">{SECRET}");
    let setup = setup.server(&["--user", USER, "on", &password, "~*", "&*", "+@all"]);
    Scene::open(run, Setup { user: format!("{USER}:{SECRET}@"), ..setup }).await
}

/// #47: the user loses the right to set expiries, at an arbitrary moment. Clients report that as
/// `Permission`, and no key is left without an expiry.
/// Exclusion, server truth; no endless keys, not even at that moment.
pub(super) async fn command_forbidden(run: Run) -> Result<Report> {
    let mut scene = open_with_user(run, Setup::default()).await?;
    scene.play().await?;
    scene.stage("staged", 0, None).await?;
    scene.fault("ACL -pexpire");
    scene.tell(&["ACL", "SETUSER", USER, "-pexpire"]).await?;
    scene.sleep(1500).await;
    let endless = scene.server()?.keys_without_expiry().await;
    scene.expect(endless.is_empty(), format!("I7: keys without expiry: {endless:?}"));
    scene.sleep(1000).await;
    scene.tell(&["ACL", "SETUSER", USER, "+pexpire"]).await?;
    scene.healed();
    let judge = Judge { losses: true, failures: &["Backend(Permission)"], ..Judge::default() };
    scene.finish(judge).await
}

/// #48: the user loses the right to channels, which closes the connections of subscribers. Releases
/// still work.
/// Exclusion, server truth; releases confirmed.
pub(super) async fn channels_forbidden(run: Run) -> Result<Report> {
    let mut scene = open_with_user(run, Setup::default()).await?;
    scene.play().await?;
    scene.stage("staged", 0, None).await?;
    scene.fault("ACL resetchannels");
    scene.tell(&["ACL", "SETUSER", USER, "resetchannels"]).await?;
    scene.sleep(1000).await;
    scene.release_well(0).await?;
    scene.sleep(1000).await;
    scene.tell(&["ACL", "SETUSER", USER, "allchannels"]).await?;
    scene.healed();
    scene.finish(Judge { failures: &["Backend(Permission)"], ..Judge::default() }).await
}

/// #49: the password is changed and all connections are closed, then the user is disabled, then
/// everything is restored. Clients report that as `Auth` at once; the password shows nowhere.
/// Errors, recovery; connections bounded by the requests of the tasks.
pub(super) async fn logged_out(run: Run) -> Result<Report> {
    let mut scene = open_with_user(run, Setup { tasks: 3, ..Setup::default() }).await?;
    scene.play().await?;
    scene.stage("staged", 0, None).await?;
    scene.fault("WRONGPASS");
    for change in [["resetpass", ">another"], ["off", "resetpass"]] {
        scene.tell(&["ACL", "SETUSER", USER, change[0], change[1]]).await?;
        scene.servers.end_connections(On::All).await?;
        scene.sleep(1000).await;
    }
    let password = format!(">{SECRET}");
    scene.tell(&["ACL", "SETUSER", USER, "on", "resetpass", &password]).await?;
    scene.healed();
    let judge = Judge { losses: true, failures: &["Backend(Auth)"], ..Judge::default() };
    scene.finish(judge).await
}

/// A certificate authority and certificates of servers, made by openssl.
fn certificates(directory: &Path) -> Result<()> {
    let openssl = |arguments: &str| {
        let made =
            Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output()?;
        if made.status.success() {
            Ok(())
        } else {
            Err(failure(String::from_utf8_lossy(&made.stderr)))
        }
    };
    std::fs::write(directory.join("good.ext"), "subjectAltName=DNS:localhost")?;
    std::fs::write(directory.join("name.ext"), "subjectAltName=DNS:elsewhere.example")?;
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=battery -days 2",
    )?;
    openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=localhost")?;
    let sign = "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial";
    openssl(&format!("{sign} -out good.pem -days 2 -extfile good.ext"))?;
    openssl(&format!("{sign} -out name.pem -days 2 -extfile name.ext"))?;
    // A negative number of days makes a certificate that has expired.
    openssl(&format!("{sign} -out old.pem -days -1 -extfile good.ext"))
}

/// #50: certificates with a wrong name, an expired date or an unknown authority; no client
/// certificate where one is required; plain text to a TLS port. Each of them fails closed, soon,
/// with an error that says so; the right one works.
pub(super) async fn tls(run: Run) -> Result<Report> {
    let directory = std::env::temp_dir().join(format!("lockcore-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    if let Err(error) = certificates(&directory) {
        return Ok(Report::impossible(run, format!("openssl made no certificates: {error}")));
    }
    let mut report = Report::new(run, &[]);
    let path = |file: &str| directory.join(file).display().to_string();
    let root = std::fs::read(path("ca.pem"))?;
    for (what, certificate, trusts, plain, works) in [
        ("the right certificate", "good.pem", true, false, true),
        ("a wrong name", "name.pem", true, false, false),
        ("out of date", "old.pem", true, false, false),
        ("an unknown authority", "good.pem", false, false, false),
        ("plain text", "good.pem", true, true, false),
    ] {
        let server = RedisServer::start_tls(&path("ca.pem"), &path(certificate), &path("key.pem"));
        let port = server.tls_port();
        let builder = RedisBackend::builder().connect_timeout(Duration::from_secs(2));
        let builder = match (plain, trusts) {
            (true, _) => builder.url(format!("redis://:{SECRET}@localhost:{port}")),
            (false, false) => builder.url(format!("rediss://:{SECRET}@localhost:{port}")),
            (false, true) => {
                let trusted =
                    redis::TlsCertificates { client_tls: None, root_cert: Some(root.clone()) };
                builder.client(redis::Client::build_with_tls(
                    format!("rediss://localhost:{port}"),
                    trusted,
                )?)
            }
        };
        let start = std::time::Instant::now();
        let connected = builder.connect().await;
        let took = start.elapsed();
        if took > Duration::from_secs(3) {
            report.findings.push(format!("I9: {what}: it took {took:?} to fail"));
        }
        match (connected, works) {
            (Ok(backend), true) => {
                let locks = Locks::new(backend);
                locks.lock("tls").acquire().await?.release().await?;
                report.grants += 1;
            }
            (Err(error), false) => {
                let known = [
                    BackendErrorKind::Connection,
                    BackendErrorKind::Timeout,
                    BackendErrorKind::Protocol,
                    BackendErrorKind::Configuration,
                ];
                if !known.contains(&error.kind()) || format!("{error} {error:?}").contains(SECRET) {
                    report.findings.push(format!("I9: {what}: {error:?}"));
                }
            }
            (Ok(_), false) => report.findings.push(format!("I9: {what} was accepted")),
            (Err(error), true) => report.findings.push(format!("I9: {what} was refused: {error}")),
        }
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(report)
}

/// #51: the server accepts no more connections, and a client can open no more files; connections of
/// one client are reset. That client gets typed errors and at worst loses its holds; the holds of
/// others are renewed on their existing connections.
/// Errors; no holds of others lost; descriptors back to the initial number.
pub(super) async fn limits_reached(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup::default().proxied()).await?;
    scene.play().await?;
    let places = scene.stage("staged", 1, None).await?;
    scene.fault("maxclients");
    scene.tell(&["CONFIG", "SET", "maxclients", "4"]).await?;
    scene.networks[0].reset();
    scene.sleep(2500).await;
    scene.tell(&["CONFIG", "SET", "maxclients", "10000"]).await?;
    scene.healed();
    scene.sleep(1500).await;
    scene.fault("RLIMIT_NOFILE");
    let pid = scene.clients[0].pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let files = rustix::process::Resource::Nofile;
    // Open descriptors stay open; the limit applies to the number of a new one.
    let limit = rustix::process::getrlimit(files);
    let before = prlimit(pid, files, Rlimit { current: Some(3), ..limit })?;
    scene.networks[0].reset();
    scene.sleep(1500).await;
    prlimit(pid, files, before)?;
    scene.healed();
    scene.expect_held(&places)?;
    scene.release_well(1).await?;
    let judge = Judge {
        losses: true,
        failures: &["Backend(Unavailable)", "Backend(Other)"],
        recovery: Duration::from_millis(1500),
        ..Judge::default()
    };
    scene.finish(judge).await
}

/// #52: `fsync` of the append-only file takes 400 ms now and then, and every write waits for it.
/// Everything is late.
/// Exclusion, server truth; no hold is lost.
pub(super) async fn slow_disk(run: Run) -> Result<Report> {
    let setup = Setup {
        tasks: 3,
        response_timeout: Duration::from_millis(900),
        ..Setup::default().unfenced()
    };
    let setup = setup.server(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut scene = Scene::open(run, setup.patient_on(run.on)).await?;
    scene.play().await?;
    let places = scene.stage("staged", 0, Some(1)).await?;
    let pid = match scene.servers.etcd() {
        Ok(etcd) => etcd.process_id(scene.servers.current_index()),
        Err(_) => Some(scene.server()?.pid()),
    };
    let Some(mut strace) = Strace::attach(pid, "fdatasync:delay_exit=400000:when=1+25")? else {
        return Ok(Report::impossible(run, "there is no strace, or it may not trace"));
    };
    scene.sleep(5000).await;
    strace.detach();
    scene.expect_held(&places)?;
    scene
        .finish(Judge { wakeup: Duration::from_secs(2), recovery: LEASE, ..Judge::default() })
        .await
}

/// #53: every seventh send and every ninth receive of a client fails with `ECONNRESET`. Unanswered
/// requests are undone.
/// Exclusion, server truth, exact counts.
pub(super) async fn failing_calls(run: Run) -> Result<Report> {
    let mut scene = Scene::open(run, Setup { tasks: 4, ..Setup::default() }).await?;
    scene.play().await?;
    scene.stage("staged", 1, None).await?;
    for inject in ["sendto:error=ECONNRESET:when=10+7", "recvfrom:error=ECONNRESET:when=10+9"] {
        scene.fault(inject);
        let Some(mut strace) = Strace::attach(scene.clients[0].pid(), inject)? else {
            return Ok(Report::impossible(run, "there is no strace, or it may not trace"));
        };
        scene.sleep(2000).await;
        strace.detach();
        scene.healed();
        scene.sleep(1500).await;
    }
    let places = scene.staged("staged");
    scene.expect_held(&places)?;
    scene
        .finish(Judge { losses: true, recovery: RENEWAL + TIMEOUT + SLACK, ..Judge::default() })
        .await
}

/// A tracer that makes system calls of a process slow or fail.
struct Strace(std::process::Child);

impl Strace {
    fn attach(pid: Option<u32>, inject: &str) -> Result<Option<Self>> {
        let pid = pid.ok_or_else(|| failure("the process has ended"))?.to_string();
        let call = inject.split(':').next().unwrap_or_default();
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-q",
            "-o",
            "/dev/null",
            "-p",
            &pid,
            "-e",
            &format!("trace={call}"),
            "-e",
        ]);
        command
            .arg(format!("inject={inject}"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut strace = match command.spawn() {
            Ok(child) => Self(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        std::thread::sleep(Duration::from_millis(300));
        Ok(strace.0.try_wait()?.is_none().then_some(strace))
    }

    fn detach(&mut self) {
        // When it is told to end, it first detaches from the process.
        let _ = crate::process::signal_process(Some(self.0.id()), rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        self.detach();
    }
}
