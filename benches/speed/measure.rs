//! What the system knows of a process, and how numbers of several rounds become one.

use std::time::Duration;

/// Processor time that a process has taken so far: all its threads, in the program and in the system.
pub fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name, in brackets, may hold spaces; utime and stime are the 12th and 13th fields after it.
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    // Linux shows 100 ticks a second to programs, whatever the kernel uses itself.
    Duration::from_millis(ticks * 10)
}

/// Datagrams that the system threw away because a socket on this port was full.
pub fn dropped(port: u16) -> u64 {
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    let local = format!(":{port:04X}");
    let ours = sockets.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&local)));
    ours.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
}

/// One disturbed round does not move the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// A result beside what it should be.
pub fn verdict(what: &str, value: f64, good: bool, target: &str) {
    let mark = if good { "reached" } else { "MISSED" };
    println!("{what}: {value:.2} (target: {target}; {mark})");
}
