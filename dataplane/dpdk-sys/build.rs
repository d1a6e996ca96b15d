//! Generates the bindings from the headers of the DPDK that is installed, and compiles its inline functions.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

/// The oldest DPDK whose interface the daemon is written against.
const DPDK_VERSION_MIN: &str = "22.11";

/// Functions that `dataplane::dpdk` calls, as regular expressions: DPDK's `rte_*`, and our `dpdk_*` (shim.c). Inline
/// functions are compiled into wrappers.
const FUNCTIONS: &[&str] = &[
    "dpdk_(errno|link_get_nowait|log_to|mbuf_tx_lengths|mempool_common_count|telemetry_add)",
    "dpdk_pktmbuf_pool_(bytes|over)",
    "rte_dev_(probe|remove)",
    "rte_dev_event_callback_(un)?register",
    "rte_eal_(init|cleanup|hotplug_add|hotplug_remove)",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_(adjust_nb_rx_tx_desc|close|configure|default_mac_addr_set|get_mtu|get_port_by_name|info_get)",
    "rte_eth_dev_(rss_hash_conf_get|rss_reta_query|rx_intr_ctl_q_get_fd|rx_intr_disable|rx_intr_enable)",
    "rte_eth_dev_(fw_version_get|set_mtu|socket_id|start|stop|vlan_filter)",
    "rte_eth_from_rings",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_(rx|tx)_(burst|queue_setup)",
    "rte_eth_rx_queue_count",
    "rte_eth_tx_prepare",
    "rte_eth_stats_get",
    "rte_eth_xstats_get(_names)?",
    "rte_log_set_global_level",
    "rte_mempool_(avail_count|default_cache|free)",
    "rte_pktmbuf_(alloc_bulk|free|free_bulk|free_seg|linearize|pool_create)",
    "rte_ring_(create|dequeue|free)",
    "rte_lcore_id",
    "rte_strerror",
    "rte_tel_data_(add_array_string|start_array|start_dict)",
    "rte_telemetry_register_cmd",
    "rte_thread_(un)?register",
    "rte_version",
];

/// Types needed in addition to those in the signatures of the functions.
const TYPES: &[&str] = &["rte_mbuf", "rte_eth_rss_reta_entry64", "rte_eth_xstat", "rte_eth_xstat_name"];

/// Types bound as opaque bytes, because the paths of their fields differ between DPDK releases; `src/field.rs` has the
/// offsets.
const OPAQUE: &[&str] = &[
    "rte_eth_link",
    "rte_mbuf",
    "rte_mempool_cache",
    "rte_ring",
    "rte_gtp_psc_generic_hdr", // packed and bit-fielded beyond what can be expressed
];

/// Reports an error to Cargo, with the action that helps, and exits.
fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1);
}

fn main() {
    for input in ["wrapper.h", "shim.c"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let dpdk = pkg_config::Config::new().atleast_version(DPDK_VERSION_MIN).probe("libdpdk").unwrap_or_else(|_| {
        fail(&format!(
            "libdpdk ({DPDK_VERSION_MIN} or newer) not found; apt-get install libdpdk-dev libclang-dev pkg-config"
        ))
    });
    // libdpdk.pc lists no drivers, and this one is called directly (rte_eth_from_rings).
    println!("cargo::rustc-link-lib=rte_net_ring");

    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_else(|| fail("OUT_DIR is not set")));
    let mut flags: Vec<String> =
        dpdk.include_paths.iter().map(|path| format!("-I{}", path.display())).collect();
    // libdpdk.pc asks for these; the pkg-config crate passes on include paths only. DPDK's own floor, never
    // `native`: the binary must run on another machine than the one that built it.
    flags.extend(["-include", "rte_config.h", "-DALLOW_EXPERIMENTAL_API"].map(String::from));
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        // DPDK 24.11's headers use the intrinsics of transactional memory behind a check of the CPU at run time.
        flags.extend(["-march=corei7", "-mrtm"].map(String::from));
    }
    generate(&flags, &out);
    compile(&flags, &out);
}

/// Writes `bindings.rs` and the C wrappers of inline functions.
fn generate(flags: &[String], out: &Path) {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(flags)
        .use_core()
        .derive_default(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        .allowlist_var("DPDK_.*")
        .allowlist_recursively(true)
        .blocklist_var("per_lcore_.*") // bindgen emits thread-locals as ordinary statics: using one would crash
        .layout_tests(true)
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join("inline"))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }
    let bindings = builder.generate().unwrap_or_else(|error| {
        fail(&format!("DPDK's headers: {error}; apt-get install libdpdk-dev libclang-dev"))
    });
    if let Err(error) = bindings.write_to_file(out.join("bindings.rs")) {
        fail(&format!("cannot write the bindings to {}: {error}", out.display()));
    }
}

/// Compiles the wrappers and the shim.
fn compile(flags: &[String], out: &Path) {
    let mut build = cc::Build::new();
    for flag in flags {
        build.flag(flag);
    }
    build.include(env!("CARGO_MANIFEST_DIR"));
    build.file(out.join("inline.c")).file("shim.c").opt_level(3).warnings(true);
    // DPDK's headers, not ours.
    build.flag("-Wno-unused-parameter").flag("-Wno-cast-qual").flag("-Wno-deprecated-declarations");
    build.compile("dpdk_shim");
}
