//! Renewals, of many holds in one statement.

use futures_util::future::join_all;
use lockcore::{
    BackendError,
    backend::{RenewOutcome, RenewRequest},
};
use tokio_postgres::types::Type;

use crate::{
    answer::field,
    backend::PostgresBackend,
    calls::microseconds,
    channel::place_of,
    connection::{Connection, Parameter, RenewalLimits},
    error,
};

/// The number of holds that one statement renews. Each name in it takes an entry in the server's
/// lock table, which has some 6,400 with the default settings.
const RENEWED_TOGETHER: usize = 128;

impl PostgresBackend {
    /// Renews all holds at once, on the connections of their names.
    pub(crate) async fn renew_all(&self, holds: &[RenewRequest]) -> Vec<RenewOutcome> {
        let connections = self.connections();
        let mut groups: Vec<Vec<usize>> = vec![Vec::new(); connections.len()];
        for (at, hold) in holds.iter().enumerate() {
            groups[place_of(hold.name.as_str(), connections.len())].push(at);
        }
        let batches = connections.iter().zip(&groups).flat_map(|(connection, group)| {
            group.chunks(RENEWED_TOGETHER).map(move |batch| (connection, batch))
        });
        let batches: Vec<_> = batches.collect();
        let shortest = holds.iter().map(|hold| hold.lease).min().unwrap_or_default();
        let renewals = batches.iter().map(|(connection, batch)| async move {
            let requests: Vec<_> = batch.iter().map(|at| &holds[*at]).collect();
            self.renew_some(connection, &requests, connection.renewal_limits(shortest)).await
        });
        let mut outcomes = vec![RenewOutcome::NotHeld; holds.len()];
        for ((_, batch), answers) in batches.iter().zip(join_all(renewals).await) {
            for (at, answer) in batch.iter().zip(answers) {
                outcomes[*at] = answer;
            }
        }
        outcomes
    }

    /// Renews holds whose names share a connection. Both statements have the same limits: the
    /// caller waits for all holds, and has to repeat what fails.
    async fn renew_some(
        &self,
        connection: &Connection,
        holds: &[&RenewRequest],
        limits: RenewalLimits,
    ) -> Vec<RenewOutcome> {
        let (one_by_one, mut outcomes) = match holds {
            [_] => (vec![0], vec![RenewOutcome::NotHeld]),
            _ => match self.renew_many(connection, holds, limits).await {
                Ok(answers) => {
                    let busy = |at: &usize| answers[*at].is_none();
                    let busy = (0..holds.len()).filter(busy).collect();
                    let outcome = |answer: &Option<bool>| renewal(answer.unwrap_or_default());
                    (busy, answers.iter().map(outcome).collect())
                }
                Err(error) => {
                    let failed = vec![RenewOutcome::Failed(error); holds.len()];
                    (Vec::new(), failed)
                }
            },
        };
        let renewals = one_by_one.iter().map(|at| self.renew_one(connection, holds[*at], limits));
        for (at, answer) in one_by_one.iter().zip(join_all(renewals).await) {
            outcomes[*at] = answer.unwrap_or_else(RenewOutcome::Failed);
        }
        outcomes
    }

    /// Renews holds in one statement, except those whose names it would have to wait for.
    async fn renew_many(
        &self,
        connection: &Connection,
        holds: &[&RenewRequest],
        limits: RenewalLimits,
    ) -> Result<Vec<Option<bool>>, BackendError> {
        const DOING: &str = "renewing holds";
        let names: Vec<&str> = holds.iter().map(|hold| hold.name.as_str()).collect();
        let ids: Vec<&str> = holds.iter().map(|hold| hold.hold.id()).collect();
        let leases: Vec<i64> = holds.iter().map(|hold| microseconds(hold.lease)).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&names, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY), (&leases, Type::INT8_ARRAY)];
        let sql = &self.calls().renew_many;
        let row = connection.renew(limits, DOING, sql, &parameters).await?;
        let renewed: Vec<Option<bool>> = field(&row, 0, DOING)?;
        if renewed.len() != holds.len() {
            return Err(error::unexpected(DOING));
        }
        Ok(renewed)
    }

    async fn renew_one(
        &self,
        connection: &Connection,
        hold: &RenewRequest,
        limits: RenewalLimits,
    ) -> Result<RenewOutcome, BackendError> {
        const DOING: &str = "renewing a hold";
        let (name, id, lease) = (hold.name.as_str(), hold.hold.id(), microseconds(hold.lease));
        let parameters: [Parameter<'_>; 3] =
            [(&name, Type::TEXT), (&id, Type::TEXT), (&lease, Type::INT8)];
        let sql = &self.calls().renew;
        let row = connection.renew(limits, DOING, sql, &parameters).await?;
        field(&row, 0, DOING).map(renewal)
    }
}

fn renewal(is_held: bool) -> RenewOutcome {
    match is_held {
        true => RenewOutcome::Renewed,
        false => RenewOutcome::NotHeld,
    }
}
