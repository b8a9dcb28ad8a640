//! Fuzz tests of the decoders and of the rules for keys, with arbitrary replies and names. Run them
//! for longer with `./scripts/fuzz`.
//!
//! The fuzzer is `arbtest`: random input shaped by `arbitrary`, on a stable toolchain, with a time
//! limit, and with a seed that repeats a failure. It is not guided by coverage. The code under test
//! has few branches, and the shapes here reach all of them. The properties take the input of
//! libFuzzer too, should that be needed.

use arbtest::{
    arbitrary::{Arbitrary, Result, Unstructured},
    arbtest,
};
use lockcore::{BackendErrorKind, LockName, backend::RenewOutcome};
use lockcore_testkit::RedisServer;
use redis::{PushKind, Value, VerbatimFormat};

use crate::{keys::LockKeys, reply};

/// Words that the decoders know, and others that they must tolerate.
const WORDS: [&str; 20] = [
    "exclusive",
    "read_write",
    "permits",
    "plain",
    "read",
    "write",
    "mode",
    "owner:1",
    "0 owner",
    "0",
    "-1",
    "1",
    "2147483648",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "1e3",
    " 1",
    "WRONGTYPE Operation",
    "NOPERM",
];

const NUMBERS: [i64; 10] = [0, 1, 2, 3, -1, -2, 30_000, u32::MAX as i64 + 1, i64::MAX, i64::MIN];

/// Generates a value, whether or not a server would send it.
pub(crate) fn value(u: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let kinds = if depth == 0 { 10 } else { 15 };
    Ok(match u.int_in_range(0..=kinds - 1)? {
        0..=2 => Value::Int(if u.ratio(3, 4)? { *u.choose(&NUMBERS)? } else { u.arbitrary()? }),
        3 | 4 => Value::BulkString((*u.choose(&WORDS)?).into()),
        5 => Value::BulkString(u.arbitrary()?),
        6 => u.choose(&[Value::Nil, Value::Okay, Value::Boolean(true)])?.clone(),
        7 => Value::SimpleString((*u.choose(&WORDS)?).into()),
        8 => Value::Double(u.arbitrary()?),
        9 => Value::VerbatimString { format: VerbatimFormat::Text, text: u.arbitrary()? },
        10 => Value::Map(values(u, depth)?.into_iter().map(|value| (value, Value::Nil)).collect()),
        11 => Value::Set(values(u, depth)?),
        12 => Value::Push { kind: PushKind::Message, data: values(u, depth)? },
        _ => Value::Array(values(u, depth)?),
    })
}

fn values(u: &mut Unstructured<'_>, depth: usize) -> Result<Vec<Value>> {
    (0..u.int_in_range(0..=6)?).map(|_| value(u, depth - 1)).collect()
}

/// Generates a reply of a script, often with errors in it.
fn reply(u: &mut Unstructured<'_>) -> Result<Value> {
    let bulk = |text: &str| Value::BulkString(text.into());
    let (int, list) = (Value::Int, |values: &[Value]| Value::Array(values.to_vec()));
    let holds = list(&[bulk("owner:1"), int(2)]);
    let mut parts = match u.int_in_range(0..=8)? {
        0 => vec![int(1), bulk("1790000000000000")],
        1 => vec![int(0), int(1500)],
        2 => vec![int(2)],
        3 => vec![int(3), int(5)],
        4 => vec![bulk("exclusive"), int(1500), holds],
        5 => vec![
            bulk("read_write"),
            int(1500),
            list(&[bulk("owner:1"), bulk("read"), int(1)]),
            list(&[bulk("1 writer")]),
        ],
        6 => vec![bulk("permits"), int(1500), holds, int(1), int(3), list(&[bulk("\0\u{1}")])],
        7 => vec![bulk("mode"), int(1)],
        _ => return value(u, 3),
    };
    for _ in 0..u.int_in_range(0..=2)? {
        let place = u.choose_index(parts.len())?;
        match u.int_in_range(0..=2)? {
            0 => parts[place] = value(u, 2)?,
            1 => parts.insert(place, value(u, 2)?),
            _ if parts.len() > 1 => drop(parts.remove(place)),
            _ => {}
        }
    }
    Ok(Value::Array(parts))
}

/// Passes `reply` to every decoder. Each must decode it or return a protocol error.
fn decode(reply: &Value) {
    let expect_protocol_error = |error: Option<lockcore::BackendError>| {
        if let Some(error) = error {
            assert_eq!(error.kind(), BackendErrorKind::Protocol, "{error}: {reply:?}");
            assert!(error.is_outcome_unknown(), "the request may have been applied");
        }
    };
    expect_protocol_error(reply::acquire(reply.clone()).err());
    expect_protocol_error(reply::release(reply.clone()).err());
    expect_protocol_error(reply::flag(reply, "x").err());
    expect_protocol_error(reply::number(reply.clone(), "x").err());
    expect_protocol_error(reply::has_subscriptions(reply, "mode").err());
    let count = if let Value::Array(parts) = reply { parts.len() } else { 0 };
    expect_protocol_error(reply::renew(reply.clone(), count + 1).err());
    match (reply::renew(reply.clone(), count), reply) {
        (Ok(outcomes), Value::Array(parts)) => {
            assert_eq!(outcomes.len(), parts.len(), "one outcome for each part");
            for (outcome, part) in outcomes.iter().zip(parts) {
                let is_renewed = matches!(outcome, RenewOutcome::Renewed);
                assert_eq!(is_renewed, part == &Value::Int(1), "only 1 is a renewal");
            }
        }
        (result, _) => expect_protocol_error(Some(result.unwrap_err())),
    }
    match reply::inspect(reply.clone()) {
        Err(error) if error.kind() == BackendErrorKind::WrongType => {
            assert!(!error.is_outcome_unknown())
        }
        result => expect_protocol_error(result.err()),
    }
}

#[test]
fn any_reply_is_decoded_or_a_protocol_error() {
    arbtest(|u| {
        decode(&reply(u)?);
        Ok(())
    });
}

/// Encodes a value as RESP.
fn encode(value: &Value, wire: &mut Vec<u8>) {
    let list = |sign: char, values: &[Value], wire: &mut Vec<u8>| {
        wire.extend(format!("{sign}{}\r\n", values.len()).bytes());
        values.iter().for_each(|value| encode(value, wire));
    };
    match value {
        Value::Int(number) => wire.extend(format!(":{number}\r\n").bytes()),
        Value::BulkString(bytes) => {
            wire.extend(format!("${}\r\n", bytes.len()).bytes());
            wire.extend(bytes);
            wire.extend(b"\r\n");
        }
        Value::SimpleString(text) => wire.extend(format!("+{text}\r\n").bytes()),
        Value::Double(number) => wire.extend(format!(",{number}\r\n").bytes()),
        Value::VerbatimString { text, .. } => {
            wire.extend(format!("={}\r\ntxt:{text}\r\n", text.len() + 4).bytes())
        }
        Value::Array(values) => list('*', values, wire),
        Value::Set(values) => list('~', values, wire),
        Value::Push { data, .. } => {
            wire.extend(format!(">{}\r\n+message\r\n", data.len() + 1).bytes());
            data.iter().for_each(|value| encode(value, wire));
        }
        Value::Map(pairs) => {
            wire.extend(format!("%{}\r\n", pairs.len()).bytes());
            pairs.iter().for_each(|(key, value)| {
                [key, value].into_iter().for_each(|value| encode(value, wire))
            });
        }
        _ => wire.extend(b"_\r\n"),
    }
}

/// Mutates encoded bytes.
fn mutate(u: &mut Unstructured<'_>, wire: &mut Vec<u8>) -> Result<()> {
    const SIGNS: [&[u8]; 18] = [
        b"*",
        b"$",
        b"%",
        b">",
        b"|",
        b"=",
        b"!",
        b"(",
        b"~",
        b"\r\n",
        b"-1",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"536870912\r\n",
        b"*1\r\n",
        b"|1\r\n",
        b"$-1\r\n",
        b"!-1\r\n",
    ];
    for _ in 0..u.int_in_range(0..=4)? {
        let place = u.int_in_range(0..=wire.len())?;
        match u.int_in_range(0..=4)? {
            0 => wire.truncate(place),
            1 if place < wire.len() => wire[place] = u.arbitrary()?,
            2 if place < wire.len() => drop(wire.remove(place)),
            3 => drop(wire.splice(place..place, u.choose(&SIGNS)?.repeat(u.int_in_range(0..=3)?))),
            _ => {
                drop(wire.splice(place..place, u.choose(&SIGNS)?.repeat(u.int_in_range(0..=500)?)))
            }
        }
    }
    Ok(())
}

#[test]
fn any_bytes_are_parsed_or_an_error() {
    arbtest(|u| {
        let mut wire = Vec::new();
        if u.ratio(9, 10)? {
            encode(&reply(u)?, &mut wire);
            mutate(u, &mut wire)?;
        } else {
            wire = Vec::arbitrary(u)?;
        }
        if let Ok(value) = redis::parse_redis_value(&wire) {
            decode(&value);
        }
        Ok(())
    });
}

/// The slot of a key, by the specification of Redis Cluster.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16384
}

/// Generates a name, often with braces. Returns `None` if it is not valid.
fn name(u: &mut Unstructured<'_>) -> Result<Option<LockName>> {
    const PARTS: [&str; 12] = [
        "{",
        "}",
        "{}",
        "{a}",
        "a",
        "b",
        ":",
        "1",
        "\u{fc}",
        "timeout",
        "lockcore_",
        "redisson_lock_token:",
    ];
    let mut name = String::new();
    for _ in 0..u.int_in_range(1..=8)? {
        match u.ratio(7, 8)? {
            true => name.push_str(u.choose(&PARTS)?),
            false => name.push(u.arbitrary()?),
        }
    }
    Ok(LockName::new(name).ok())
}

/// All keys of a name that scripts use together.
fn keys_of(keys: &LockKeys, condition: &LockName, owner: &str) -> Vec<String> {
    let single = [
        keys.lock(),
        keys.token().to_string(),
        keys.hold(),
        keys.lease(owner),
        keys.writers(),
        keys.permit_leases(),
        keys.plain_permit_leases(),
        keys.permit_holds(),
        keys.latch_state(),
    ];
    single.into_iter().chain(keys.queue()).chain(keys.condition(condition)).collect()
}

#[test]
fn all_keys_of_a_name_are_in_one_slot() {
    arbtest(|u| {
        let prefix = *u.choose(&["", "app:", "\u{fc}"])?;
        let (Some(name), Some(condition), owner) = (name(u)?, name(u)?, String::arbitrary(u)?)
        else {
            return Ok(());
        };
        if let Ok(keys) = LockKeys::new(prefix, &name) {
            for key in keys_of(&keys, &condition, &owner) {
                assert_eq!(slot(&key), slot(&keys.lock()), "{key:?} of {name:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn our_own_keys_belong_to_one_name_and_one_purpose() {
    arbtest(|u| {
        let (Some(one), Some(other), Some(condition)) = (name(u)?, name(u)?, name(u)?) else {
            return Ok(());
        };
        let (Ok(one_keys), Ok(other_keys)) = (LockKeys::new("", &one), LockKeys::new("", &other))
        else {
            return Ok(());
        };
        let ours = |keys: &LockKeys, owner| {
            let mut keys = keys_of(keys, &condition, owner);
            keys.retain(|key| key.starts_with("lockcore_"));
            keys
        };
        let mut all = ours(&one_keys, "a");
        assert!(!all.contains(&other_keys.lock()), "{other:?} has the name of a key of {one:?}");
        if one != other {
            all.extend(ours(&other_keys, "a"));
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{one:?} and {other:?} share a key: {all:?}");
        Ok(())
    });
}

#[tokio::test]
async fn the_slots_computed_here_are_those_of_a_real_server() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let names = [
        "",
        "a",
        "123456789",
        "{a}b",
        "a{b}c",
        "{}a",
        "a{}{b}",
        "{{a}}",
        "a{b",
        "a}b",
        "}{a}",
        "\u{fc}{\u{fc}}",
    ];
    for key in names
        .map(str::to_owned)
        .into_iter()
        .chain((0..200).map(|number| format!("x{number}{{{}}}", number * 7919)))
    {
        assert_eq!(server.query::<u16>(&["CLUSTER", "KEYSLOT", &key]).await, slot(&key), "{key:?}");
    }
}
