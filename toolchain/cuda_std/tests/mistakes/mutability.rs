include!("kernel.in.rs");

fn main() {
    let (mut y, x) = (Memory, Memory);
    let x: DevicePtr<'_, f32> = x.read();
    launch(&scale, &Scale { y: x, x, factor: 2.0 });
    y.write::<f32>();
}
