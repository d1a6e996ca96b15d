//! Device of the program: a daemon's, or a port of its own, configured by a file or by command line options.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use iwarp_config::Config;
use toml::{Table, Value};

/// Port that the program owns.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Port")]
pub struct PortArgs {
    /// Configuration file in the daemon's format, with one `[[port]]` and one worker.
    #[arg(long, value_name = "FILE", conflicts_with = "driver")]
    config: Option<PathBuf>,
    /// Driver of the port: tap, af_packet, af_xdp, pcap.
    #[arg(long, requires_all = ["interface", "net"])]
    driver: Option<String>,
    /// Interface of the port; a TAP is created.
    #[arg(long, requires = "driver")]
    interface: Option<String>,
    /// Address and prefix of the port, IPv4 or IPv6; twice for both.
    #[arg(long = "address", id = "net", value_name = "ADDRESS/LEN", requires = "driver")]
    addresses: Vec<String>,
    /// Next hop for other networks; twice for both families.
    #[arg(long, value_name = "ADDRESS", requires = "driver")]
    gateway: Vec<std::net::IpAddr>,
    /// Largest IP packet, bytes.
    #[arg(long, requires = "driver")]
    mtu: Option<u16>,
    /// CPU to run on.
    #[arg(long, requires = "driver", default_value_t = 0)]
    core: u16,
    /// Poll without ever sleeping.
    #[arg(long, requires = "driver")]
    spin: bool,
}

impl PortArgs {
    /// Returns the checked configuration, or a message about its errors.
    pub fn config(&self) -> Result<Config, String> {
        let config = match &self.config {
            Some(file) => Config::load(file),
            None => Config::parse("command line", &self.text()),
        };
        config.map_err(|errors| errors.render(std::io::stderr().is_terminal()))
    }

    /// Composes the text of a configuration file from the options.
    fn text(&self) -> String {
        let string = |text: &str| Value::String(text.to_owned());
        let mut port = Table::new();
        port.extend(self.driver.iter().map(|driver| ("driver".to_owned(), string(driver))));
        port.extend(self.interface.iter().map(|interface| ("interface".to_owned(), string(interface))));
        let addresses = self.addresses.iter().map(|address| string(address)).collect();
        port.insert("addresses".to_owned(), Value::Array(addresses));
        for gateway in &self.gateway {
            let key = if gateway.is_ipv4() { "gateway" } else { "gateway6" };
            port.insert(key.to_owned(), string(&gateway.to_string()));
        }
        port.extend(self.mtu.map(|mtu| ("mtu".to_owned(), Value::from(i64::from(mtu)))));
        let memory = [
            ("hugepages", string("prefer")),
            ("packet_buffers", Value::from(8192)),
            ("file_prefix", string("iwarp-rping")),
        ];
        let workers = [
            ("cores", Value::Array(vec![Value::from(i64::from(self.core))])),
            ("idle", string(if self.spin { "spin" } else { "adaptive" })),
        ];
        let table = |entries: Vec<(&str, Value)>| {
            Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        };
        let mut text = Table::new();
        text.insert("memory".to_owned(), table(memory.into()));
        text.insert("workers".to_owned(), table(workers.into()));
        text.insert("tcp".to_owned(), table(vec![("connections_max", Value::from(1024))]));
        text.insert("port".to_owned(), Value::Array(vec![Value::Table(port)]));
        text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use iwarp_config::Driver;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        device: PortArgs,
    }

    #[test]
    fn options_give_the_same_settings_as_a_file() {
        let line = "x --driver tap --interface iw7 --address 10.7.0.2/24 --address fd07::2/64 --gateway 10.7.0.1 \
                    --gateway fd07::1 --mtu 9000 --core 3 --spin";
        let device = Line::parse_from(line.split_whitespace()).device;
        let config = device.config().unwrap();
        let [port] = config.ports.as_slice() else { panic!("{:?}", config.ports) };
        assert_eq!(port.driver, Driver::Tap { interface: "iw7".to_owned() });
        assert_eq!((port.mtu, config.workers.cores.as_slice()), (9000, &[3][..]));
        assert_eq!(port.gateway6, Some("fd07::1".parse().unwrap()));
        assert!(port.ipv4.is_some() && port.ipv6.is_some());
    }

    #[test]
    fn errors_are_reported() {
        let line = "x --driver tap --interface iw7 --address 10.7.0.2 --mtu 99";
        let message = Line::parse_from(line.split_whitespace()).device.config().unwrap_err();
        assert!(message.contains("mtu") && message.contains("addresses"), "{message}");
    }
}
