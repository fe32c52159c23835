//! Processor time, memory and disk writes of processes, from `/proc`.

/// What a process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The process.
    pub pid: u32,
    /// Processor time, in seconds; 0 if it cannot be read.
    pub cpu_seconds: f64,
    /// Resident bytes.
    pub resident: u64,
    /// Bytes that it caused to be written to disk, in whole pages.
    pub written: u64,
}

impl Usage {
    /// The processor time and the bytes written since `before`, and the memory now.
    pub fn since(self, before: &Usage) -> Usage {
        let cpu_seconds = (self.cpu_seconds - before.cpu_seconds).max(0.0);
        Usage { cpu_seconds, written: self.written.saturating_sub(before.written), ..self }
    }
}

/// Reads a process's usage; zeros if it is gone.
pub fn usage(pid: u32) -> Usage {
    Usage {
        pid,
        cpu_seconds: cpu_seconds(pid).unwrap_or(0.0),
        resident: resident(pid).unwrap_or(0),
        written: written(pid).unwrap_or(0),
    }
}

/// Linux counts processor time in hundredths of a second whatever its own tick is.
const TICKS: f64 = 100.0;

fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name is in parentheses and may hold anything; the numbers come after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS)
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn written(pid: u32) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        assert!(usage(std::process::id()).resident > 0);
    }
}
