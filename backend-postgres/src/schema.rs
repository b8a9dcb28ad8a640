//! [`Schema`]: the schema of the tables and functions, and its migration.

use std::{fmt, sync::Arc, time::Duration};

use lockcore::BackendError;
use tokio_postgres::{Client, types::Type};

use crate::{connection::Parameter, error, target::Target};

/// The prefix of names in the files, which stands for the schema.
const WRITTEN_FOR: &str = "lockcore.";

/// The time limit for all work on the schema, including waits.
const LIMIT: Duration = Duration::from_secs(30);

/// The longest name of a schema, in bytes.
const LONGEST: usize = 63;

/// The files that make version 1 of the schema.
const FIRST: [&str; 10] = [
    include_str!("sql/tables.sql"),
    include_str!("sql/entering.sql"),
    include_str!("sql/permits.sql"),
    include_str!("sql/acquire.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/latches.sql"),
    include_str!("sql/conditions.sql"),
    include_str!("sql/keeping.sql"),
    include_str!("sql/fencing.sql"),
    include_str!("sql/directory.sql"),
];

/// The files that make each version from the one before it. A published version is never changed,
/// and a version takes nothing away: clients of earlier ones may still be running.
const MIGRATIONS: [&[&str]; 1] = [&FIRST];

/// The versions that the schema has had.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS lockcore.migration (\n    \
                     number integer PRIMARY KEY,\n    at timestamptz NOT NULL DEFAULT now()\n);\n";

/// The oldest version of PostgreSQL that works, as a server version number.
pub(crate) const OLDEST: i32 = 130_000;

/// Begins a transaction in which nothing is looked for in the schemas of others.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED;\n\
                     SET LOCAL search_path = pg_catalog, pg_temp;\n";

/// Excludes concurrent migrations until the end of the transaction.
const ENTER: &str = "SELECT pg_advisory_xact_lock(1819239276, 1)";

/// The name of a schema.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    name: Arc<str>,
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Schema {
    /// Checks and wraps a name, which goes into statements.
    pub(crate) fn new(name: &str) -> Result<Self, BackendError> {
        let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_word || name.is_empty() || name.len() > LONGEST {
            return Err(error::configuration(format!(
                "`{}` cannot be the name of the schema; use 1 to {LONGEST} letters, digits and \
                 underscores",
                name.escape_default()
            )));
        }
        Ok(Self { name: name.into() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// SQL that was written for the schema `lockcore`.
    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace(WRITTEN_FOR, &format!("\"{}\".", self.name))
    }

    /// Everything that brings the schema to the present version, as a client does: in one
    /// transaction, and without what is there already.
    pub(crate) fn script(&self) -> String {
        let name = &self.name;
        let mut script = format!("{BEGIN}{ENTER};\n");
        script.push_str(&format!(
            "DO $step$ BEGIN\nIF to_regnamespace('\"{name}\"') IS NULL THEN\n    \
             CREATE SCHEMA \"{name}\";\nEND IF;\nEND $step$;\n"
        ));
        script.push_str(&self.sql(TABLE));
        for (number, parts) in (1..).zip(MIGRATIONS) {
            let begin = format!(
                "DO $step$ BEGIN\nIF NOT EXISTS (SELECT FROM lockcore.migration WHERE number = \
                 {number}) THEN\nEXECUTE $parts$\n"
            );
            script.push_str(&self.sql(&begin));
            script.push_str(&self.step(number, parts));
            script.push_str("$parts$;\nEND IF;\nEND $step$;\n");
        }
        script.push_str("COMMIT;\n");
        script
    }

    fn step(&self, number: usize, parts: &[&str]) -> String {
        let note = format!("INSERT INTO lockcore.migration (number) VALUES ({number});\n");
        self.sql(&[&[TABLE], parts, &[note.as_str()]].concat().join("\n"))
    }

    /// Brings the schema to the version of this crate, if it is older and `migrates`.
    pub(crate) async fn prepare(
        &self,
        target: &Target,
        migrates: bool,
    ) -> Result<(), BackendError> {
        match tokio::time::timeout(LIMIT, self.migrate(target, migrates)).await {
            Ok(prepared) => prepared,
            Err(_) => Err(error::no_answer("migrating the schema", target.address(), LIMIT)),
        }
    }

    async fn migrate(&self, target: &Target, migrates: bool) -> Result<(), BackendError> {
        let opened = target.open(&target.session_name(), None).await?;
        let (client, address) = (&opened.client, target.address());
        self.check_server(client, address).await?;
        let version = self.version(client, address).await?;
        // The server answers, so the connections that follow need not begin with one that does not.
        target.prefer(&opened);
        if version >= MIGRATIONS.len() {
            return Ok(());
        }
        if !migrates {
            return Err(error::configuration(format!(
                "the schema `{self}` of PostgreSQL at {address} has version {version}, and \
                 version {} is needed; allow this client to migrate it, or run what \
                 `PostgresBackend::schema_script` returns",
                MIGRATIONS.len()
            )));
        }
        let doing = format!("migrating the schema `{self}`");
        let failed = |error| error::of_migration(error, &doing, address);
        // In one transaction: if anything fails, everything is as before.
        client.batch_execute(BEGIN).await.map_err(failed)?;
        client.batch_execute(ENTER).await.map_err(failed)?;
        // Another client may have done it meanwhile.
        let version = self.version(client, address).await?;
        if version == 0 {
            self.create(client, address).await?;
        }
        for (number, parts) in (1..).zip(MIGRATIONS).skip(version) {
            client.batch_execute(&self.step(number, parts)).await.map_err(failed)?;
        }
        client.batch_execute("COMMIT").await.map_err(failed)?;
        Ok(())
    }

    /// Creates the schema itself, unless it is there: that needs a right on the database.
    async fn create(&self, client: &Client, address: &str) -> Result<(), BackendError> {
        let name: &str = &self.name;
        let sql = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
        let parameters: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
        let failed =
            |error| error::of_creation(error, &format!("creating the schema `{name}`"), address);
        let row = client.query_typed_one(sql, &parameters).await.map_err(failed)?;
        if row.try_get::<_, i64>(0).map_err(failed)? == 0 {
            let sql = format!("CREATE SCHEMA \"{name}\"");
            client.batch_execute(&sql).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The version of the schema, 0 if there is nothing yet.
    async fn version(&self, client: &Client, address: &str) -> Result<usize, BackendError> {
        let failed =
            |error| error::of_request(error, &format!("looking at the schema `{self}`"), address);
        let table = format!("\"{}\".migration", self.name);
        let sql = "SELECT count(*) FROM pg_class JOIN pg_namespace AS schema \
                   ON schema.oid = relnamespace WHERE nspname = $1 AND relname = 'migration'";
        let name: &str = &self.name;
        let parameters: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
        let row = client.query_typed_one(sql, &parameters).await.map_err(failed)?;
        if row.try_get::<_, i64>(0).map_err(failed)? == 0 {
            return Ok(0);
        }
        let sql = format!("SELECT coalesce(max(number), 0)::bigint FROM {table}");
        let row = client.query_typed_one(&sql, &[]).await.map_err(failed)?;
        let version: i64 = row.try_get(0).map_err(failed)?;
        Ok(usize::try_from(version).unwrap_or_default())
    }

    async fn check_server(&self, client: &Client, address: &str) -> Result<(), BackendError> {
        let failed = |error| error::of_connecting(error, address);
        let sql = "SELECT current_setting('server_version_num')::integer, \
                   current_setting('server_version'), current_setting('server_encoding'), \
                   current_setting('transaction_isolation')";
        let row = client.query_typed_one(sql, &[]).await.map_err(failed)?;
        let isolation: &str = row.try_get(3).map_err(failed)?;
        if isolation != "read committed" {
            return Err(error::configuration(format!(
                "transactions at {address} have the isolation level {isolation}, and locks need \
                 read committed; set default_transaction_isolation for the role, or in the \
                 `options` of the URL"
            )));
        }
        let number = row.try_get(0).map_err(failed)?;
        let (version, encoding): (&str, &str) =
            (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?);
        check((number, version), encoding, address)
    }
}

/// Refuses servers that are too old, and other encodings than UTF8, in which a name may have no
/// representation, or an ambiguous one.
fn check(
    (number, version): (i32, &str),
    encoding: &str,
    address: &str,
) -> Result<(), BackendError> {
    if number < OLDEST {
        return Err(error::configuration(format!(
            "PostgreSQL at {address} has version {version}, and {} or newer is needed; upgrade it",
            OLDEST / 10_000
        )));
    }
    if encoding != "UTF8" {
        return Err(error::configuration(format!(
            "the database at {address} has the encoding {encoding}; create one with \
             ENCODING 'UTF8' TEMPLATE template0"
        )));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]
mod tests {
    use std::{fs, path::Path};

    use lockcore::BackendErrorKind;

    use super::*;

    #[test]
    fn names_that_need_quotes_are_refused() {
        for name in ["", "a\"b", "a b", "a.b", "a$$", &"x".repeat(64)] {
            let error = Schema::new(name).unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
        }
    }

    #[test]
    fn servers_that_are_too_old_or_have_another_encoding_are_refused() {
        let check = |number, encoding| check((number, "12.22"), encoding, "db.internal:5432");
        check(130_000, "UTF8").unwrap();
        check(180_001, "UTF8").unwrap();
        for (number, encoding, said) in [
            (120_022, "UTF8", "12.22"),
            (90_624, "UTF8", "13 or newer"),
            (170_000, "LATIN1", "UTF8"),
        ] {
            let error = check(number, encoding).unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Configuration, "{error}");
            assert!(error.to_string().contains(said), "{error}");
            assert!(error.to_string().contains("db.internal:5432"), "{error}");
        }
    }

    /// The text of all files for Rust in a folder.
    fn sources(folder: &Path) -> String {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let texts = paths.map(|path| match path.extension() {
            Some(extension) if extension == "rs" => fs::read_to_string(path).unwrap(),
            Some(_) => String::new(),
            None => sources(&path),
        });
        texts.collect()
    }

    /// Otherwise operators and functions of the schemas of others would run in it. The functions
    /// that are not called from here run in the search path of those that are.
    #[test]
    fn every_function_that_is_called_has_its_own_search_path() {
        let calls = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        let mut called = 0;
        for file in MIGRATIONS.concat() {
            for function in file.split("CREATE FUNCTION lockcore.").skip(1) {
                let (head, _) = function.split_once(" AS $$").unwrap();
                let (name, _) = head.split_once('(').unwrap();
                let is_called = calls.contains(&format!("lockcore.{name}("))
                    || calls.contains(&format!("(\"{name}\","));
                let has_path = head.ends_with(" SET search_path = pg_catalog, pg_temp");
                assert_eq!(has_path, is_called, "{head}");
                called += usize::from(is_called);
            }
        }
        assert!(called > 20, "{called}");
    }

    #[test]
    fn no_file_ends_the_quotes_of_the_script() {
        for file in MIGRATIONS.concat() {
            assert!(!file.contains("$step$") && !file.contains("$parts$"));
        }
    }

    #[test]
    fn sql_is_for_the_schema() {
        let schema = Schema::new("shop_Locks").unwrap();
        let sql = schema.sql("SELECT lockcore.sweep($1), 'lockcore.token'");
        assert_eq!(sql, "SELECT \"shop_Locks\".sweep($1), '\"shop_Locks\".token'");
    }
}
