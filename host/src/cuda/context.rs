//! The devices that the process has opened: the primary context of each, and what is loaded into it.

use super::current::{current, forget_current, set_current};
use super::fault::{alive_on, failure_on};
use super::module::Modules;
use super::planned;
use super::properties::{Properties, read_properties};
use crate::{Error, Result};
use cust::context::{Context, CurrentContext};
use pascaline_driver as driver;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// A device that the process has opened.
pub(super) struct Opened {
    /// None of a planned device.
    context: Option<Context>,
    pub(super) modules: Modules,
    pub(super) properties: Properties,
    /// Whether kernels that need less energy are preferred.
    pub(super) low_power: AtomicBool,
}

/// One context and its modules per device for the life of the process.
static OPENED: Mutex<Vec<Option<Arc<Opened>>>> = Mutex::new(Vec::new());

impl Opened {
    /// The device of this number, opened at the first call, with its context current.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no such device or it is older than compute capability 6.1.
    pub(super) fn device(ordinal: u32) -> Result<Arc<Self>> {
        let index = ordinal as usize;
        let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let device = match opened.get(index).cloned().flatten() {
            Some(device) => device,
            None => {
                let device = Arc::new(open(ordinal)?); // which refuses numbers that the list must not grow to
                if opened.len() <= index {
                    opened.resize(index + 1, None);
                }
                opened[index] = Some(Arc::clone(&device));
                device
            }
        };
        drop(opened);
        device.bind()?;
        Ok(device)
    }

    /// A device of the plan that this thread makes, with these properties.
    pub(super) fn planned(properties: Properties) -> Result<Arc<Self>> {
        let (context, modules, low_power) = (None, Modules::planned(), AtomicBool::new(false));
        let device = Arc::new(Self { context, modules, properties, low_power });
        device.bind()?;
        Ok(device)
    }

    /// Its primary context; none of a planned device.
    pub(super) fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    /// Makes its context current on the calling thread.
    pub(super) fn bind(&self) -> Result<()> {
        let ordinal = self.properties.ordinal;
        alive_on(Some(ordinal), "cuCtxSetCurrent")?;
        if current() != Some(ordinal) {
            match &self.context {
                Some(context) => CurrentContext::set_current(context)
                    .map_err(|_| failure_on(Some(ordinal), "cuCtxSetCurrent", driver::last_raw_code()))?,
                None => planned::make_current(ordinal)?,
            }
            set_current(ordinal);
        }
        Ok(())
    }
}

/// Makes the context of an opened device current; for destructors, which run on any thread.
pub(super) fn bind_ordinal(ordinal: Option<u32>) -> Result<()> {
    let Some(index) = ordinal else { return Ok(()) };
    if planned::is_planned(index) {
        return planned::make_current(index);
    }
    let opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let device = opened.get(index as usize).cloned().flatten();
    drop(opened);
    device.map_or(Ok(()), |device| device.bind())
}

fn open(ordinal: u32) -> Result<Opened> {
    let (device, properties) = read_properties(ordinal)?;
    if properties.capability < (6, 1) {
        let (major, minor) = properties.capability;
        let reason = format!(
            "{} has compute capability {major}.{minor}; the kernels need 6.1 or newer",
            properties.name
        );
        return Err(Error::NoDevice { reason });
    }
    let context = Context::new(device).map_err(|_| Error::NoDevice {
        reason: format!("no context on {}: {}", properties.name, driver::code_text(driver::last_raw_code())),
    })?;
    let opened = Opened {
        context: Some(context),
        modules: Modules::new(),
        properties,
        low_power: AtomicBool::new(false),
    };
    forget_current(); // the primary context may have been made current by others
    opened.bind()?;
    Ok(opened)
}
