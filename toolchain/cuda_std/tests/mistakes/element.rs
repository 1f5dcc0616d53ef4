include!("kernel.in.rs");

fn main() {
    let (mut y, x) = (Memory, Memory);
    let x: DevicePtr<'_, f64> = x.read();
    launch(&scale, &Scale { y: y.write(), x, factor: 2.0 });
}
