//! Redisson, on a JVM: driven as in the interoperability suite, with the loops inside the JVM
//! (`Benchmark.java`) and with Redisson's own defaults.

use std::time::Duration;

use lockcore_interop::Java;

use crate::{
    error::{Result, failure},
    measure::load::{Load, Span},
    subjects::Names,
    worker::{Answer, Order},
};

/// How long a new JVM runs the measured code beforehand: the compiler needs that time.
const WARM_UP: Span = Span { warm_up: Duration::ZERO, measured: Duration::from_secs(6) };

/// The number of tasks in the warm-up.
const WARM_UP_TASKS: usize = 16;

/// The time limit of an order.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options of the JVM, which chooses its compiler and collector itself.
const OPTIONS: [&str; 1] = ["-Xmx512m"];

/// A JVM with one Redisson client.
#[derive(Debug)]
pub(crate) struct Redisson {
    java: Java,
    client: String,
    /// The name of the lock that `Acquire` holds.
    held: Option<String>,
}

impl Redisson {
    /// Starts a JVM and warms it up.
    pub(crate) async fn start(url: &str, lease: Duration) -> Result<Self> {
        let java = Java::start_with(&OPTIONS)?;
        let client = java.benchmark("benchConnect", &[url, &lease.as_millis().to_string()]).await?;
        let mut redisson = Self { java, client, held: None };
        redisson.load(Names::Each("warm-up".into()), WARM_UP_TASKS, WARM_UP).await?;
        redisson.load(Names::One("warm-up".into()), WARM_UP_TASKS, WARM_UP).await?;
        Ok(redisson)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.java.pid()
    }

    pub(crate) async fn kill(self) -> Result<()> {
        Ok(self.java.halt().await?)
    }

    pub(crate) async fn order(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Load { names, tasks, span } => {
                Ok(Answer::Load(self.load(names, tasks, span).await?))
            }
            Order::Acquire(name) => {
                let had = self.ask("benchAcquire", &[&name]).await?;
                self.held = Some(name);
                stamp(&had)
            }
            Order::Release => {
                let name = self.held.take().ok_or_else(|| failure("nothing is held"))?;
                stamp(&self.ask("benchRelease", &[&name]).await?)
            }
            Order::Hold { prefix, from, count } => {
                self.done("benchHold", &[&prefix, &from.to_string(), &count.to_string()]).await
            }
            Order::Visit { .. } => Err(failure("the memory of a JVM is not measured")),
            Order::Wait { prefix, names, count } => {
                self.done("benchWait", &[&prefix, &names.to_string(), &count.to_string()]).await
            }
            Order::Await { prefix, count } => {
                self.done("benchAwait", &[&prefix, &count.to_string()]).await
            }
            Order::Grants => stamps(&self.ask("benchGrants", &[]).await?),
            Order::Nest { samples, pairs } => {
                stamps(&self.ask("benchNest", &[&samples.to_string(), &pairs.to_string()]).await?)
            }
        }
    }

    async fn load(&mut self, names: Names, tasks: usize, span: Span) -> Result<Load> {
        let (kind, name) = match &names {
            Names::One(name) => ("one", name),
            Names::Each(prefix) => ("each", prefix),
        };
        let [tasks, warm_up, measured] =
            [tasks as u128, span.warm_up.as_millis(), span.measured.as_millis()]
                .map(|number| number.to_string());
        let answer = self.ask("benchLoad", &[kind, name, &tasks, &warm_up, &measured]).await?;
        parse_load(&answer).ok_or_else(|| failure(format!("not understood: {answer}")))
    }

    async fn done(&self, verb: &str, arguments: &[&str]) -> Result<Answer> {
        self.ask(verb, arguments).await.map(|_| Answer::Done)
    }

    async fn ask(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        let arguments = [&[self.client.as_str()], arguments].concat();
        let answer = tokio::time::timeout(PATIENCE, self.java.benchmark(verb, &arguments)).await;
        Ok(answer.map_err(|_| failure(format!("{verb} takes more than {PATIENCE:?}")))??)
    }
}

fn stamp(answer: &str) -> Result<Answer> {
    Ok(Answer::Stamp(answer.parse()?))
}

fn stamps(answer: &str) -> Result<Answer> {
    let stamps: std::result::Result<_, _> = answer.split_whitespace().map(str::parse).collect();
    Ok(Answer::Stamps(stamps?))
}

/// `ns all hand-overs;pairs pairs ..;wait:count wait:count ..`.
fn parse_load(answer: &str) -> Option<Load> {
    let mut parts = answer.split(';');
    let mut numbers = parts.next()?.split_whitespace().map(str::parse);
    let mut number = || numbers.next()?.ok();
    let (took, all_pairs, hand_overs) = (number()?, number()?, number()?);
    let pairs = parts.next()?.split_whitespace().map(|pairs| pairs.parse().ok());
    let waits = parts.next()?.split_whitespace().map(|wait| {
        let (wait, count) = wait.split_once(':')?;
        Some((wait.parse().ok()?, count.parse().ok()?))
    });
    Some(Load {
        took: Duration::from_nanos(took),
        all_pairs,
        hand_overs,
        pairs: pairs.collect::<Option<_>>()?,
        waits: waits.collect::<Option<_>>()?,
        // A failure in Java ends the run.
        ..Load::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_one_line() {
        let load = parse_load("2000000000 9 5;3 4;1000:5 2000:2").unwrap();
        assert_eq!((load.total(), load.all_pairs, load.hand_overs), (7, 9, 5));
        assert_eq!(load.waits, [(1000, 5), (2000, 2)]);
        assert!(parse_load("2 x 1;3;").is_none() && parse_load("2 3 1").is_none());
    }
}
