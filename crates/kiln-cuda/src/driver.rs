//! The CUDA driver as far as Kiln needs it: one table of functions, loaded once, and each call as a `Result`.

use crate::library::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::LazyLock;

/// The names that it may have.
pub(crate) const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// What a function of the driver returns; zero is success.
type Status = c_int;
/// An address in device memory.
pub(crate) type DevicePtr = u64;
/// Handles of the driver's objects.
pub(crate) type RawContext = *mut c_void;
pub(crate) type RawStream = *mut c_void;
pub(crate) type RawModule = *mut c_void;
pub(crate) type RawFunction = *mut c_void;
pub(crate) type RawEvent = *mut c_void;
pub(crate) type RawGraph = *mut c_void;
pub(crate) type RawGraphExec = *mut c_void;
pub(crate) type RawNode = *mut c_void;

/// A launch as a node of a graph; `CUDA_KERNEL_NODE_PARAMS_v2` of cuda.h.
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: RawFunction,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) arguments: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    pub(crate) kernel: *mut c_void,
    pub(crate) context: RawContext,
}

/// How a node of a graph depends on another one; `CUgraphEdgeData` of cuda.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Edge {
    from_port: u8,
    to_port: u8,
    kind: u8,
    reserved: [u8; 5],
}

impl Edge {
    /// The next launch may begin when every block of the one before has allowed it, and waits for its end by itself.
    pub(crate) const PROGRAMMATIC: Edge = Edge { from_port: 1, to_port: 0, kind: 1, reserved: [0; 5] };
}

/// The oldest version of CUDA whose driver has all functions.
const OLDEST: &str = "12.8";
/// The driver's code for memory that is not to be had.
const OUT_OF_MEMORY: Status = 2;

/// A failed call of the driver, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    /// The driver's code; 0 where no call was made.
    pub code: i64,
    /// The function, and the driver's words.
    pub message: String,
}

impl DriverError {
    /// A request that cannot be met, without having asked the driver.
    pub(crate) fn out_of_memory() -> DriverError {
        DriverError { code: OUT_OF_MEMORY.into(), message: String::new() }
    }

    /// Whether the device has not enough memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == i64::from(OUT_OF_MEMORY)
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DriverError {}

pub(crate) type Result<T> = std::result::Result<T, DriverError>;

macro_rules! driver_functions {
    ($($field:ident = $symbol:literal ($($arg:ident: $ty:ty),*);)*) => {
        /// The functions of `libcuda`.
        pub(crate) struct Driver {
            $($field: unsafe extern "C" fn($($ty),*) -> Status,)*
            error_name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
            error_string: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        }

        impl Driver {
            fn load() -> std::result::Result<Driver, String> {
                let library = Library::open_of_system(&NAMES)?;
                Driver::find(&library).map_err(|missing| {
                    format!("it is older than CUDA {OLDEST}, which is the oldest that can be used: {missing}")
                })
            }

            fn find(library: &Library) -> std::result::Result<Driver, String> {
                // SAFETY: the signatures are those of cuda.h.
                unsafe {
                    Ok(Driver {
                        $($field: library.function(const {
                            match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!("a name without NUL"),
                            }
                        })?,)*
                        error_name: library.function(c"cuGetErrorName")?,
                        error_string: library.function(c"cuGetErrorString")?,
                    })
                }
            }

            $(
                /// # Safety
                /// As the driver's function of this name asks.
                #[allow(clippy::too_many_arguments, reason = "as many as the driver's function has")]
                pub(crate) unsafe fn $field(&self, $($arg: $ty),*) -> Result<()> {
                    // SAFETY: the caller's promise.
                    let status = unsafe { (self.$field)($($arg),*) };
                    if status == 0 { Ok(()) } else { Err(self.error($symbol, status)) }
                }
            )*
        }
    };
}

driver_functions! {
    init = "cuInit" (flags: c_uint);
    driver_version = "cuDriverGetVersion" (version: *mut c_int);
    device_count = "cuDeviceGetCount" (count: *mut c_int);
    device_get = "cuDeviceGet" (device: *mut c_int, ordinal: c_int);
    device_name = "cuDeviceGetName" (name: *mut c_char, length: c_int, device: c_int);
    device_attribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: c_int);
    device_memory = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: c_int);
    retain_context = "cuDevicePrimaryCtxRetain" (context: *mut RawContext, device: c_int);
    set_context = "cuCtxSetCurrent" (context: RawContext);
    get_context = "cuCtxGetCurrent" (context: *mut RawContext);
    synchronize_context = "cuCtxSynchronize" ();
    memory_info = "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    allocate_pinned = "cuMemAllocHost_v2" (address: *mut *mut c_void, bytes: usize);
    free_pinned = "cuMemFreeHost" (address: *mut c_void);
    allocate = "cuMemAlloc_v2" (address: *mut DevicePtr, bytes: usize);
    free = "cuMemFree_v2" (address: DevicePtr);
    to_device = "cuMemcpyHtoDAsync_v2" (to: DevicePtr, from: *const c_void, bytes: usize, stream: RawStream);
    to_host = "cuMemcpyDtoHAsync_v2" (to: *mut c_void, from: DevicePtr, bytes: usize, stream: RawStream);
    on_device = "cuMemcpyDtoDAsync_v2" (to: DevicePtr, from: DevicePtr, bytes: usize, stream: RawStream);
    fill = "cuMemsetD8Async" (to: DevicePtr, value: u8, bytes: usize, stream: RawStream);
    create_stream = "cuStreamCreate" (stream: *mut RawStream, flags: c_uint);
    destroy_stream = "cuStreamDestroy_v2" (stream: RawStream);
    begin_capture = "cuStreamBeginCapture_v2" (stream: RawStream, mode: c_int);
    is_capturing = "cuStreamIsCapturing" (stream: RawStream, status: *mut c_int);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (mode: *mut c_int);
    end_capture = "cuStreamEndCapture" (stream: RawStream, graph: *mut RawGraph);
    synchronize_stream = "cuStreamSynchronize" (stream: RawStream);
    load_module = "cuModuleLoadData" (module: *mut RawModule, image: *const c_void);
    unload_module = "cuModuleUnload" (module: RawModule);
    module_function = "cuModuleGetFunction" (function: *mut RawFunction, module: RawModule, name: *const c_char);
    function_attribute = "cuFuncGetAttribute" (value: *mut c_int, attribute: c_int, function: RawFunction);
    set_function_attribute = "cuFuncSetAttribute" (function: RawFunction, attribute: c_int, value: c_int);
    launch = "cuLaunchKernel" (function: RawFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: RawStream, arguments: *mut *mut c_void,
        extra: *mut *mut c_void);
    create_graph = "cuGraphCreate" (graph: *mut RawGraph, flags: c_uint);
    add_kernel_node = "cuGraphAddKernelNode_v2" (node: *mut RawNode, graph: RawGraph, dependencies: *const RawNode,
        count: usize, parameters: *const KernelNode);
    add_child_node = "cuGraphAddChildGraphNode" (node: *mut RawNode, graph: RawGraph, dependencies: *const RawNode,
        count: usize, child: RawGraph);
    set_child_node = "cuGraphExecChildGraphNodeSetParams" (executable: RawGraphExec, node: RawNode, child: RawGraph);
    add_dependencies = "cuGraphAddDependencies_v2" (graph: RawGraph, from: *const RawNode, to: *const RawNode,
        edges: *const Edge, count: usize);
    instantiate_graph = "cuGraphInstantiateWithFlags" (executable: *mut RawGraphExec, graph: RawGraph, flags: u64);
    set_kernel_node = "cuGraphExecKernelNodeSetParams_v2" (executable: RawGraphExec, node: RawNode,
        parameters: *const KernelNode);
    launch_graph = "cuGraphLaunch" (executable: RawGraphExec, stream: RawStream);
    destroy_graph_exec = "cuGraphExecDestroy" (executable: RawGraphExec);
    destroy_graph = "cuGraphDestroy" (graph: RawGraph);
    create_event = "cuEventCreate" (event: *mut RawEvent, flags: c_uint);
    record_event = "cuEventRecord" (event: RawEvent, stream: RawStream);
    wait_event = "cuStreamWaitEvent" (stream: RawStream, event: RawEvent, flags: c_uint);
    synchronize_event = "cuEventSynchronize" (event: RawEvent);
    elapsed = "cuEventElapsedTime_v2" (milliseconds: *mut f32, start: RawEvent, end: RawEvent);
    destroy_event = "cuEventDestroy_v2" (event: RawEvent);
}

impl Driver {
    #[cold]
    fn error(&self, function: &str, status: Status) -> DriverError {
        let text = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = std::ptr::null();
            // SAFETY: the driver writes the address of a static text, or null.
            unsafe { get(status, &mut text) };
            // SAFETY: as above.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.error_name).unwrap_or_else(|| format!("code {status}"));
        let words = text(self.error_string).unwrap_or_default();
        DriverError { code: status.into(), message: format!("{function}: {name}: {words}") }
    }
}

/// The driver, loaded and initialised at the first use; the same error every time where there is none.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: LazyLock<Result<Driver>> = LazyLock::new(|| {
        let missing = |reason| DriverError { code: 0, message: format!("no CUDA driver: {reason}") };
        let driver = Driver::load().map_err(missing)?;
        // SAFETY: no arguments to get wrong.
        unsafe { driver.init(0) }?;
        Ok(driver)
    });
    DRIVER.as_ref().map_err(DriverError::clone)
}
