//! The requests that are sent to a member, each of which may be sent again.

use std::future::Future;

use etcd_client::{
    Client, Error, GetOptions, LeaseGrantOptions, LeaseTimeToLiveOptions, ResponseHeader, Txn,
    TxnResponse,
};

use crate::error::{is_lease_taken, is_no_lease};

/// A request that can be sent to one member after another: sent twice, it has the effect of one, or
/// it fails because of the first.
pub(crate) trait Request: Sync {
    /// The answer.
    type Answer: Send;

    /// Sends it.
    fn send(
        &self,
        client: &Client,
    ) -> impl Future<Output = Result<Answered<Self::Answer>, Error>> + Send;
}

/// An answer, and the cluster that it comes from.
pub(crate) struct Answered<T> {
    pub(crate) answer: T,
    /// The id of the cluster. `None` if the answer does not tell.
    pub(crate) cluster: Option<u64>,
}

impl<T> Answered<T> {
    fn new(answer: T, header: Option<&ResponseHeader>) -> Self {
        Self { answer, cluster: cluster_of(header) }
    }

    /// An answer that was made from an error, or whose header the etcd client keeps.
    fn without_cluster(answer: T) -> Self {
        Self { answer, cluster: None }
    }
}

/// The id of the cluster that a header names.
pub(crate) fn cluster_of(header: Option<&ResponseHeader>) -> Option<u64> {
    header.map(ResponseHeader::cluster_id).filter(|cluster| *cluster != 0)
}

/// A transaction. A transaction that writes compares the state that it is based on.
pub(crate) struct Transact(pub(crate) Txn);

impl Request for Transact {
    /// `None` if the lease of a key that was to be written is gone.
    type Answer = Option<TxnResponse>;

    async fn send(&self, client: &Client) -> Result<Answered<Self::Answer>, Error> {
        match client.kv_client().txn(self.0.clone()).await {
            Ok(answer) => {
                let cluster = cluster_of(answer.header());
                Ok(Answered { answer: Some(answer), cluster })
            }
            Err(error) if is_no_lease(&error) => Ok(Answered::without_cluster(None)),
            Err(error) => Err(error),
        }
    }
}

/// A read that needs a majority, and the right to read everything below a prefix.
pub(crate) struct Count<'a>(pub(crate) &'a str);

impl Request for Count<'_> {
    type Answer = ();

    async fn send(&self, client: &Client) -> Result<Answered<()>, Error> {
        let options = GetOptions::new().with_prefix().with_count_only();
        let answer = client.kv_client().get(self.0, Some(options)).await?;
        Ok(Answered::new((), answer.header()))
    }
}

/// A question to a member about its cluster, which it answers without the others. The client may
/// read `key`.
pub(crate) struct WhichCluster<'a>(pub(crate) &'a str);

impl Request for WhichCluster<'_> {
    type Answer = ();

    async fn send(&self, client: &Client) -> Result<Answered<()>, Error> {
        let options = GetOptions::new().with_count_only().with_serializable();
        let answer = client.kv_client().get(self.0, Some(options)).await?;
        Ok(Answered::new((), answer.header()))
    }
}

/// The grant of a lease for a number of seconds. With the id 0, the server chooses one.
pub(crate) struct GrantLease {
    pub(crate) lease: i64,
    pub(crate) seconds: i64,
}

/// A lease that was granted, with its number of seconds.
pub(crate) struct GrantedLease {
    pub(crate) lease: i64,
    pub(crate) seconds: i64,
}

impl Request for GrantLease {
    /// `None` if there is such a lease already.
    type Answer = Option<GrantedLease>;

    async fn send(&self, client: &Client) -> Result<Answered<Self::Answer>, Error> {
        let options = LeaseGrantOptions::new().with_id(self.lease);
        match client.lease_client().grant(self.seconds, Some(options)).await {
            Ok(granted) => {
                let lease = GrantedLease { lease: granted.id(), seconds: granted.ttl() };
                Ok(Answered::new(Some(lease), granted.header()))
            }
            Err(error) if is_lease_taken(&error) => Ok(Answered::without_cluster(None)),
            Err(error) => Err(error),
        }
    }
}

/// The end of a lease and of its keys.
pub(crate) struct Revoke(pub(crate) i64);

impl Request for Revoke {
    /// `true` if there was such a lease.
    type Answer = bool;

    async fn send(&self, client: &Client) -> Result<Answered<bool>, Error> {
        match client.lease_client().revoke(self.0).await {
            Ok(answer) => Ok(Answered::new(true, answer.header())),
            Err(error) if is_no_lease(&error) => Ok(Answered::without_cluster(false)),
            Err(error) => Err(error),
        }
    }
}

/// The renewal of a lease, for as long as it was granted.
///
/// Each is a stream of its own that ends with the answer. A stream that stayed open would have to
/// be watched and opened again, and would tie all renewals of a client to one member.
pub(crate) struct KeepAlive(pub(crate) i64);

impl Request for KeepAlive {
    /// `true` if there is such a lease.
    type Answer = bool;

    async fn send(&self, client: &Client) -> Result<Answered<bool>, Error> {
        match client.lease_client().keep_alive(self.0).await {
            Ok(_) => Ok(Answered::without_cluster(true)),
            Err(error) if is_no_lease(&error) => Ok(Answered::without_cluster(false)),
            Err(error) => Err(error),
        }
    }
}

/// A query of how long a lease lasts.
pub(crate) struct TimeToLive(pub(crate) i64);

/// An existing lease.
pub(crate) struct Lease {
    /// The number of full seconds that are left.
    pub(crate) left: i64,
    /// The number of seconds that it was granted for.
    pub(crate) seconds: i64,
    pub(crate) keys: Vec<Vec<u8>>,
}

impl Request for TimeToLive {
    /// `None` if it has ended, or there is none.
    type Answer = Option<Lease>;

    async fn send(&self, client: &Client) -> Result<Answered<Self::Answer>, Error> {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        match client.lease_client().time_to_live(self.0, Some(options)).await {
            Ok(lease) => {
                let found = (lease.ttl() >= 0).then(|| Lease {
                    left: lease.ttl(),
                    seconds: lease.granted_ttl(),
                    keys: lease.keys().to_vec(),
                });
                Ok(Answered::new(found, lease.header()))
            }
            Err(error) if is_no_lease(&error) => Ok(Answered::without_cluster(None)),
            Err(error) => Err(error),
        }
    }
}
