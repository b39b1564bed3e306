//! The machine that figures are from.

/// Processor, how many, kernel, memory, load: one line.
pub fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("a processor without a name", |(_, model)| model.trim());
    let hypervisor = cpuinfo.lines().any(|line| line.starts_with("flags") && line.ends_with(" hypervisor"))
        || cpuinfo.contains(" hypervisor ");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    format!(
        "{threads} processors{} ({model}), {} GiB, Linux {kernel}, load {}",
        if hypervisor { " of a virtual machine" } else { "" },
        kib.unwrap_or(0).div_ceil(1 << 20),
        load.join(" ")
    )
}
