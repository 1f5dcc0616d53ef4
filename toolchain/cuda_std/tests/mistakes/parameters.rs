include!("kernel.in.rs");

fn main() {
    let (mut y, x) = (Memory, Memory);
    launch(&scale, &(y.write::<f32>(), x.read::<f32>(), 2.0f32));
}
