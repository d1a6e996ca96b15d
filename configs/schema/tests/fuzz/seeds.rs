//! Seed inputs of the corpus.

/// Returns the shipped configurations without their comments.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let names = ["af_packet", "af_xdp", "demo", "memif", "pcap", "pci", "reference", "tap"];
    let texts = names.map(|name| std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap());
    let bare = |text: &String| -> String {
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end());
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.to_owned() + "\n")
            .collect()
    };
    texts.iter().map(|text| bare(text).into_bytes()).collect()
}
