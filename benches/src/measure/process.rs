//! The resources of a process, as the kernel reports them in `/proc`.

use std::{fs, time::Duration};

use crate::error::{Result, failure};

/// The anonymous memory of a process in bytes: its heap and its stacks.
pub(crate) fn memory(pid: u32) -> Result<u64> {
    let status = read(pid, "status")?;
    resident(&status).ok_or_else(|| failure(format!("/proc/{pid}/status does not say RssAnon")))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The processor time of a process so far, usually in steps of 10 ms.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let stat = read(pid, "stat")?;
    let ticks =
        ticks(&stat).ok_or_else(|| failure(format!("/proc/{pid}/stat is not understood")))?;
    Ok(Duration::from_nanos(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())))
}

/// The processor time of all threads of a process so far, in nanoseconds where the kernel counts
/// them.
pub(crate) fn exact_processor_time(pid: u32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path().join("schedstat");
        // Kernels may be built without it.
        let Ok(text) = fs::read_to_string(&path) else { return processor_time(pid) };
        sum += on_processor(&text)
            .ok_or_else(|| failure(format!("{} is not understood", path.display())))?;
    }
    Ok(sum)
}

/// The first number is the time on a processor, the user's and the system's together.
fn on_processor(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The time of the user and of the system. The name of the program comes before, in parentheses,
/// and may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path)
        .map_err(|error| failure(format!("{path}: {error}; the benchmark needs Linux")))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(resident("VmRSS:\t  900 kB\nRssAnon:\t   12 kB\n"), Some(12 * 1024));
        assert_eq!(ticks("7 (a) b) S 1 7 7 0 -1 4 0 0 0 0 30 12 0 0 20 0"), Some(42));
        assert_eq!(ticks("7 (a"), None);
        assert_eq!(on_processor("54495541 80483562 184\n"), Some(Duration::from_nanos(54_495_541)));
        assert_eq!(on_processor("\n"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        assert!(memory(pid).unwrap() > 0);
        processor_time(pid).unwrap();
        // A kernel without schedstat counts in ticks: the work has to outlast some of them.
        let start = Instant::now();
        while exact_processor_time(pid).unwrap() == Duration::ZERO {
            assert!(start.elapsed() < Duration::from_secs(60), "no processor time is counted");
        }
    }
}
