//! Fuzz target: an arbitrary text is either a configuration whose memory plan can be computed, or has mistakes at the
//! places that the report states.

use iwarp_config::{Config, memory_plan};

pub(crate) fn files(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Files that the text names are resolved in a folder that does not exist.
    let errors = match Config::parse("/nonexistent/t.toml", text) {
        Ok(config) => {
            let plan = memory_plan(&config);
            assert!(plan.items().iter().all(|item| !item.what.is_empty()));
            assert!(
                plan.hugepages().checked_mul(2 << 20).is_some_and(|bytes| bytes >= plan.hugepage_bytes())
            );
            return;
        }
        Err(errors) => errors,
    };
    let mistakes = errors.mistakes();
    assert!(!mistakes.is_empty());
    let lines = text.split('\n').count();
    assert!(
        mistakes.iter().all(|mistake| (1..=lines).contains(&mistake.line) && !mistake.message.is_empty())
    );
    assert!(errors.render(false).contains("help:"));
    assert_eq!(errors.short().lines().count(), mistakes.len());
    let written = serde_json::to_value(&errors).expect("mistakes can be written as JSON");
    assert_eq!(written.as_array().map(Vec::len), Some(mistakes.len()));
}
