//! The label that the user makes of a name, and the names and units of all metrics.

use std::time::Duration;

use lockcore::{LockName, Locks};
use lockcore_memory::MemoryBackend;
use lockcore_testkit::{Fault, Faulty, Op};
use metrics::Unit;

use crate::figures::Figures;

fn kind(name: &LockName) -> &'static str {
    match name.as_str().starts_with("order:") {
        true => "order",
        false => "rest",
    }
}

#[test]
fn names_are_no_label_unless_the_user_groups_them() {
    Figures::of(async |figures: Figures| {
        let plain = Locks::new(MemoryBackend::new());
        drop(plain.lock("order:42").acquire().await.unwrap());
        let named = |figures: &Figures| figures.keys().iter().any(|key| key.contains("order"));
        assert!(!named(&figures), "{:?}", figures.keys());

        let locks = Locks::builder(MemoryBackend::new()).metrics_group(kind).build().unwrap();
        drop(locks.lock("order:42").acquire().await.unwrap());
        drop(locks.lock("order:43").acquire().await.unwrap());
        drop(locks.lock("job").acquire().await.unwrap());
        let granted = |group| {
            format!("lockcore_acquire_seconds{{group={group},mode=exclusive,outcome=granted}}")
        };
        figures.settle().await;
        assert_eq!(figures.count(&granted("order")), 2);
        assert_eq!(figures.count(&granted("rest")), 1);
        assert_eq!(figures.keys().iter().filter(|key| key.contains("order:")).count(), 0);
        figures.assert_at_rest("all guards are gone");
    });
}

#[test]
fn there_are_never_more_groups_than_a_hundred() {
    Figures::of(async |figures: Figures| {
        let locks = Locks::builder(MemoryBackend::new())
            .metrics_group(|name| String::leak(name.as_str().to_owned()))
            .build()
            .unwrap();
        for number in 0..150 {
            drop(locks.lock(format!("{number}")).acquire().await.unwrap());
        }
        let held = figures.keys().into_iter().filter(|key| key.starts_with("lockcore_held{"));
        assert_eq!(held.count(), 101);
        let other = "lockcore_acquire_seconds{group=other,mode=exclusive,outcome=granted}";
        figures.settle().await;
        assert_eq!(figures.count(other), 50);
    });
}

#[test]
fn every_metric_has_the_name_that_is_documented_and_a_unit() {
    Figures::of(async |figures: Figures| {
        let backend = Faulty::new(MemoryBackend::new());
        backend.faults().every(Op::Acquire, Fault::Delay(Duration::from_millis(1)));
        let locks = Locks::new(backend);
        drop(locks.lock("a").acquire().await.unwrap());
        let described = figures.described();
        let registered: Vec<String> = figures
            .keys()
            .iter()
            .filter_map(|key| Some(key.split_once('{')?.0.to_owned()))
            .collect();
        for name in &registered {
            assert!(described.contains_key(name), "{name} is not described");
        }
        let documented = include_str!("../../../docs/METRICS.md");
        assert_eq!(described.len(), 9);
        for (name, unit) in described {
            assert!(registered.contains(&name), "{name} is not registered");
            assert!(documented.contains(&format!("`{name}`")), "{name} is not in METRICS.md");
            assert_eq!(unit == Some(Unit::Seconds), name.ends_with("_seconds"), "{name}");
        }
    });
}
