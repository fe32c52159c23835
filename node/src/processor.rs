//! What the binary asks of the processor (`.cargo/config.toml`), checked before anything else can trip over it.

/// The first feature that the binary was built for and that this processor lacks.
///
/// The answer is the processor's own (CPUID leaf 1, ECX): `is_x86_feature_detected!` takes what the compiler was
/// told for granted.
#[cfg(target_arch = "x86_64")]
pub fn missing() -> Option<&'static str> {
    const NEEDED: [(&str, u32, bool); 5] = [
        ("SSE 3", 0, cfg!(target_feature = "sse3")),
        ("PCLMULQDQ", 1, cfg!(target_feature = "pclmulqdq")),
        ("SSSE 3", 9, cfg!(target_feature = "ssse3")),
        ("SSE 4.2", 20, cfg!(target_feature = "sse4.2")),
        ("POPCNT", 23, cfg!(target_feature = "popcnt")),
    ];
    let features = std::arch::x86_64::__cpuid(1).ecx;
    NEEDED.iter().find(|(_, bit, needed)| *needed && features & (1 << bit) == 0).map(|(name, _, _)| *name)
}

/// Other architectures are built for their baseline.
#[cfg(not(target_arch = "x86_64"))]
pub fn missing() -> Option<&'static str> {
    None
}
