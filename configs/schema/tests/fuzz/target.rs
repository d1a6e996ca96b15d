//! Texts of configuration files: each is a configuration whose cost can be summed up, or has mistakes that stand where
//! the report says, however it is written.

use iwarp_config::{Config, memory_plan};

pub(crate) fn files(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Files that the text names are looked for in a folder that is not there.
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
