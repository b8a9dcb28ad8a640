//! Installing, preparing and starting PostgreSQL servers.

use std::{
    fmt, fs,
    io::{self, BufRead, BufReader},
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, Weak},
    thread,
};

use crate::{folder::new_folder, scratch::scratch, shared::shared};

/// The variable that names the folder of server programs other than the installed ones.
const VARIABLE: &str = "LOCKCORE_POSTGRES_BIN";

/// Debian keeps the programs of each version in a separate folder outside of the `PATH`.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The user of Debian's package. The server runs as this user if the tests run as root, because it
/// refuses to run as root.
const USER: &str = "postgres";

/// The rules for connections: the superuser needs no password, all other roles need theirs.
const RULES: &str = "local all all trust\n\
                     host all postgres 127.0.0.1/32 trust\n\
                     host replication postgres 127.0.0.1/32 trust\n\
                     host all all 127.0.0.1/32 scram-sha-256\n";

/// Why a PostgreSQL server, or a pooler in front of it, could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum PostgresStartError {
    /// There is no `initdb` and `postgres` on this machine.
    NotInstalled,
    /// There are no programs in the folder in the variable `LOCKCORE_POSTGRES_BIN`.
    Missing(PathBuf),
    /// The tests run as root, and there is no user `postgres`.
    NoUser,
    /// There is no `pgbouncer` on this machine.
    NoPooler,
    /// The server did not come up; with its output.
    Failed(String),
}

impl fmt::Display for PostgresStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str(
                "PostgreSQL is not installed: run ./scripts/test, which installs it, or install \
                 it yourself (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install \
                 postgresql-server; macOS: brew install postgresql), or set \
                 LOCKCORE_POSTGRES_BIN to the folder of `initdb` and `postgres`",
            ),
            Self::Missing(path) => {
                write!(f, "{VARIABLE} names {}, where there is no `initdb`", path.display())
            }
            Self::NoUser => write!(
                f,
                "PostgreSQL does not run as root, and there is no user `{USER}`, as whom it \
                 could; run the tests as another user, or add one: useradd --system {USER}"
            ),
            Self::NoPooler => f.write_str(
                "PgBouncer is not installed: run ./scripts/test, which installs it, or install it \
                 yourself (Debian, Ubuntu: apt-get install pgbouncer; Fedora: dnf install \
                 pgbouncer; macOS: brew install pgbouncer)",
            ),
            Self::Failed(said) => write!(f, "PostgreSQL did not start: {said}"),
        }
    }
}

impl std::error::Error for PostgresStartError {}

pub(super) fn failed(error: impl fmt::Display) -> PostgresStartError {
    PostgresStartError::Failed(error.to_string())
}

/// The folder of the server's programs.
pub(super) fn programs() -> Result<PathBuf, PostgresStartError> {
    let has_server = |folder: &PathBuf| folder.join("initdb").exists();
    if let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        return Some(folder.clone()).filter(has_server).ok_or(PostgresStartError::Missing(folder));
    }
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut versions: Vec<_> = versions
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| has_server(folder))
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let newest = versions.pop().map(|(_, folder)| folder);
    newest
        .or_else(|| std::env::split_paths(&path).find(has_server))
        .ok_or(PostgresStartError::NotInstalled)
}

/// The user and the group that the server runs as, if they differ from those of the tests.
static OTHER_USER: LazyLock<Result<Option<(u32, u32)>, PostgresStartError>> = LazyLock::new(|| {
    let id = |arguments: &[&str]| -> Option<u32> {
        let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    if id(&["-u"]) != Some(0) {
        return Ok(None);
    }
    let ids = id(&["-u", USER]).zip(id(&["-g", USER]));
    ids.map(Some).ok_or(PostgresStartError::NoUser)
});

fn other_user() -> Result<Option<(u32, u32)>, PostgresStartError> {
    match &*OTHER_USER {
        Ok(user) => Ok(*user),
        Err(_) => Err(PostgresStartError::NoUser),
    }
}

/// A command for one of the server's programs, run as the server's user.
pub(super) fn program(name: &str, directory: &Path) -> Result<Command, PostgresStartError> {
    as_server_user(Command::new(programs()?.join(name)), directory)
}

/// A command that is run as the server's user.
pub(super) fn as_server_user(
    mut command: Command,
    directory: &Path,
) -> Result<Command, PostgresStartError> {
    command.current_dir(directory).stdin(Stdio::null()).env("LC_ALL", "C.UTF-8");
    if let Some((user, group)) = other_user()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Runs one of the server's programs to its end.
pub(super) fn run(
    name: &str,
    directory: &Path,
    arguments: &[&str],
) -> Result<(), PostgresStartError> {
    finish(program(name, directory)?.args(arguments), name)
}

fn finish(command: &mut Command, name: &str) -> Result<(), PostgresStartError> {
    let output = command.output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(format_args!("{name}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// The data of an empty database, which servers begin with a copy of. Creating it takes a hundred
/// times as long as copying it.
#[derive(Debug)]
pub(super) struct Template(PathBuf);

impl Template {
    /// The template that the servers of this process share while there are any.
    pub(super) fn shared() -> Result<Arc<Self>, PostgresStartError> {
        static SHARED: Mutex<Weak<Template>> = Mutex::new(Weak::new());
        shared(&SHARED, Self::create)
    }

    fn create() -> Result<Self, PostgresStartError> {
        let template = Self(new_directory()?);
        let arguments = ["-D", "data", "-U", "postgres", "--auth=trust", "--no-sync"];
        let more = ["--encoding=UTF8", "--locale=C", "--no-instructions"];
        run("initdb", &template.0, &[&arguments[..], &more[..]].concat())?;
        fs::write(data(&template.0).join("pg_hba.conf"), RULES).map_err(failed)?;
        Ok(template)
    }

    /// Copies the data into the directory of a server.
    pub(super) fn copy_to(&self, directory: &Path) -> Result<(), PostgresStartError> {
        let mut command = as_server_user(Command::new("cp"), directory)?;
        finish(command.arg("-Rp").arg(data(&self.0)).arg(data(directory)), "cp")
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A new folder, owned by the server's user.
pub(super) fn new_directory() -> Result<PathBuf, PostgresStartError> {
    let directory = new_folder(&scratch(), "lockcore-postgres").map_err(failed)?;
    if let Some((user, group)) = other_user()? {
        chown(&directory, Some(user), Some(group)).map_err(failed)?;
    }
    Ok(directory)
}

/// Makes the server's user the owner of a file, with no access for others.
pub(super) fn give(file: &Path) -> Result<(), PostgresStartError> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    match other_user()? {
        Some((user, group)) => chown(file, Some(user), Some(group)).map_err(failed),
        None => Ok(()),
    }
}

pub(super) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The path of the server's data in `directory`.
pub(super) fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// Starts the server whose data is in `directory`, and returns when it accepts connections.
pub(super) fn spawn(
    directory: &Path,
    port: u16,
    options: &[String],
) -> Result<Child, PostgresStartError> {
    let mut command = program("postgres", directory)?;
    command.arg("-D").arg(data(directory)).args(["-p", &port.to_string()]);
    command.arg("-k").arg(directory);
    // The data of a test need not survive a crash of the machine.
    let fixed = [
        "listen_addresses=127.0.0.1",
        "fsync=off",
        "logging_collector=off",
        // Uses the data directory, because a killed server would leave its memory in `/dev/shm`.
        "dynamic_shared_memory_type=mmap",
    ];
    let settings = fixed.iter().copied().chain(options.iter().map(String::as_str));
    command.args(settings.flat_map(|setting| ["-c", setting]));
    until_it_says("ready to accept", command)
}

/// Starts a server, and returns once its log has a line with `ready`.
pub(super) fn until_it_says(
    ready: &str,
    mut command: Command,
) -> Result<Child, PostgresStartError> {
    let mut process =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(output) = process.stderr.take() {
        let mut lines = BufReader::new(output);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
            if line.contains(ready) {
                // The server continues to write, and would block if nobody read its output.
                thread::spawn(move || io::copy(&mut lines, &mut io::sink()));
                return Ok(process);
            }
            said.push_str(&line);
            line.clear();
        }
    }
    let _ = process.kill();
    let _ = process.wait();
    Err(PostgresStartError::Failed(said))
}
