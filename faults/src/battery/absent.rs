//! Faults that a deployment cannot have, and why.

use crate::deployment::Deployment::{self, Cluster, Etcd, Postgres, Quorum, Sentinel, Single};

/// The reason why a deployment does not have a fault; `None` if it has.
pub(super) fn why(number: u32, on: Deployment) -> Option<&'static str> {
    match on {
        Single | Sentinel | Cluster => on_redis(number, on),
        Quorum => on_quorum(number),
        Postgres => on_postgres(number),
        Etcd => on_etcd(number),
    }
}

fn on_redis(number: u32, on: Deployment) -> Option<&'static str> {
    Some(match (number, on) {
        (23..=26 | 63..=65, Single) => "a single server has no replica",
        (27, Single | Cluster) => "there are no Sentinels",
        (25, Cluster) => "there are no Sentinels; 29 is the same in a cluster",
        (28 | 66, Single | Sentinel) => "there are no slots",
        (29, Single) => "a single server has no replica",
        (29, Sentinel) => "25 is the same with Sentinels",
        (55..=57 | 67..=69 | 72, _) => "this is no quorum",
        (70 | 71, _) => "this is no PostgreSQL",
        (73..=79, _) => "this is no etcd",
        (21, Cluster) => "a node of a cluster refuses REPLICAOF; 64 demotes a primary",
        (43, Cluster) => {
            "nodes judge each other by their wall clocks: one whose clock jumps is replaced, as in \
             29"
        }
        (50 | 54, Sentinel | Cluster) => {
            "it is about one connection to a server of its own, which is the same in every \
             deployment"
        }
        _ => return None,
    })
}

fn on_quorum(number: u32) -> Option<&'static str> {
    Some(match number {
        23..=26 | 29 | 63..=65 => "the members have no replicas",
        27 => "there are no Sentinels",
        28 | 66 => "there are no slots",
        7 => "one that is stopped for long is one of the two in 55",
        11 => "one that comes back empty is one of the two in 57",
        15..=17 | 19..=21 => {
            "one that has lost a hold or refuses everything is one of the two in 55, 57 and 67 to \
             69"
        }
        32 | 33 | 35 => {
            "it is about the connection to one server, which each member has for itself"
        }
        50 | 54 => "it is about one connection to one server, which is that of a member",
        70 | 71 => "this is no PostgreSQL",
        73..=79 => "this is no etcd",
        80 => "locks are kept on Redis only",
        _ => return None,
    })
}

fn on_postgres(number: u32) -> Option<&'static str> {
    Some(match number {
        8 | 9 => "70 is the same with a transaction",
        49 | 51 => "the suite of the backend has it",
        11 | 12 | 15..=20 | 22 | 46..=48 => "it is about Redis; a database has other ways",
        13 => "it loads nothing while it runs; 10 has it recover",
        14 => "there are no scripts",
        21 => "a primary cannot be made a replica while it runs; 25 has clients meet a replica",
        26 | 63..=65 => {
            "whoever promotes a replica has to see to it that the old primary stays down"
        }
        27 => "there are no Sentinels",
        28 | 66 => "there are no slots",
        29 => "25 is the same",
        33 | 35 => "messages come from the database only, and its queue holds 8 GB",
        34 | 37 | 39 | 40 => {
            "the proxy does not know the messages of PostgreSQL; 36 and 38 break connections \
             anywhere, and the suite of the backend has it"
        }
        43 => "its clock cannot be set for one process",
        50 | 54 => "the suite of the backend has it",
        52 => "its files are not flushed to the disk in tests",
        55..=57 | 67..=69 | 72 => "this is no quorum",
        73..=79 => "this is no etcd",
        80 => "locks are kept on Redis only",
        _ => return None,
    })
}

fn on_etcd(number: u32) -> Option<&'static str> {
    Some(match number {
        7 => "one that is stopped for long is one of those in 74 and 75",
        8 | 9 => "no request keeps a member busy",
        11 => "one that comes back empty is the one in 77",
        12 => {
            "a member has flushed its files before it answers: one whose files end early is \
             replaced, as in 77"
        }
        13..=20 | 22 | 46..=49 | 51 => {
            "it is about Redis; the suite of the backend has foreign keys, rights, credentials and \
             a full database"
        }
        21 => "a follower passes on what is asked of it",
        23..=26 | 29 | 63..=65 => {
            "the members have no replicas; 73 and 75 have another leader take over"
        }
        27 => "there are no Sentinels",
        28 | 66 => "there are no slots",
        31 => "a member closes no connection when it is told to; 38 has the network do so",
        32 | 33 | 35 | 37 => {
            "clients listen on the connection of their requests, which 36 and 38 break, and only \
             to the members"
        }
        34 | 39 | 40 => {
            "the proxy does not know the messages of etcd; 36, 38 and 42 break connections \
             anywhere, and the suite of the backend has late requests"
        }
        43 => {
            "leases end by the monotonic clock, and no preloaded library moves that of a Go program"
        }
        50 => "the suite of the backend has it",
        54 => "it speaks the protocol of Redis",
        55..=57 | 67..=69 | 72 => "the members know of each other; 73 to 79 are those of etcd",
        70 | 71 => "this is no PostgreSQL",
        80 => "locks are kept on Redis only",
        _ => return None,
    })
}
